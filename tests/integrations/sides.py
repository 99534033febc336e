"""Runs one program in FastEstimator and in fastnet, and compares the results.

This module has the models and tensors of torch, and tf_sides.py those of TensorFlow, under the same
names: a test that is given one of the two modules as `fw` is a program for either framework.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

# Every module of tests here imports this one, and so is skipped where there is nothing to compare.
pytest.importorskip(
    "fastestimator",
    reason="compares fastnet with FastEstimator 1.7.0, which is not installed here: `make test-fe`",
)

import tensorflow as tf

# float32's own rounding, once, and after some steps.
LOSS = 1e-6
WEIGHTS = 1e-5

Program = Callable[[Any], Any]

NAME = "torch"
# A layer of `mlp`, by index in torch and by name in Keras.
LAYER: Any = 0


class Sides:
    """FastEstimator and fastnet, for programs that are given one of them as an argument.

    Both have the same import paths, so a program says `lib.op.tensorop.LambdaOp` and means the
    class of the package that it runs in. That a program needs nothing else is itself tested.
    """

    def __init__(self, fastestimator: ModuleType, fastnet: ModuleType) -> None:
        self.fastestimator = fastestimator
        self.fastnet = fastnet

    def run(self, program: Program, seed: int = 0) -> tuple[Any, Any]:
        """Run a program in both, from the same seeds; FastEstimator's result comes first."""
        results = []
        for lib in (self.fastestimator, self.fastnet):
            start_over(seed)
            results.append(program(lib))
        start_over()
        return results[0], results[1]

    def agree(self, program: Program, rtol: float = 0.0, seed: int = 0) -> Any:
        """Check that a program has the same result in both, and return fastnet's.

        Without a tolerance, results must be bitwise equal.
        """
        expected, actual = self.run(program, seed)
        assert_same(actual, expected, rtol)
        return actual


def start_over(seed: int = 0) -> None:
    """Seed every generator, and reset Keras's layer names and its precision policy."""
    tf.keras.backend.clear_session()
    tf.keras.mixed_precision.set_global_policy("float32")  # FastEstimator's build changes it.
    tf.keras.utils.set_random_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def assert_same(actual: Any, expected: Any, rtol: float = 0.0, path: str = "result") -> None:
    """Compare two nests: values, shapes, dtypes, keys, and which of them are tensors.

    Models stand for their weights. A ChainMap counts as the dict that it looks like.
    """
    if isinstance(expected, torch.nn.Module):
        actual, expected = actual.state_dict(), expected.state_dict()
    elif isinstance(expected, tf.keras.Model):
        actual, expected = actual.get_weights(), expected.get_weights()
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(
            actual,
            expected,
            rtol=rtol,
            atol=rtol / 10,
            equal_nan=True,
            msg=lambda text: f"{path}: {text}",
        )
    elif tf.is_tensor(expected) or isinstance(expected, (np.ndarray, np.generic, float)):
        assert tf.is_tensor(actual) == tf.is_tensor(expected), f"{path}: {type(actual)}"
        one, other = np.asarray(actual), np.asarray(expected)
        assert one.dtype == other.dtype, f"{path}: {one.dtype}, not {other.dtype}"
        assert one.shape == other.shape, f"{path}: {one.shape}, not {other.shape}"
        if rtol:
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol / 10, err_msg=path)
        else:
            np.testing.assert_array_equal(one, other, err_msg=path)
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), path
        assert set(actual) == set(expected), path
        for key in expected:
            assert_same(actual[key], expected[key], rtol, f"{path}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, (str, bytes)):
        assert type(actual) is type(expected), path
        assert len(actual) == len(expected), path
        for index, (one, other) in enumerate(zip(actual, expected, strict=True)):
            assert_same(one, other, rtol, f"{path}[{index}]")
    else:
        assert actual == expected, path


def batches(count: int, seed: int = 0, size: int = 8, width: int = 6) -> list[dict[str, Any]]:
    """Make batches: `x` to predict from, and as truth classes, one-hot classes and numbers."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        label = torch.randint(0, 3, (size,), generator=generator)
        made.append(
            {
                "x": torch.randn(size, width, generator=generator),
                "label": label,
                "onehot": torch.nn.functional.one_hot(label, 3),
                "target": torch.randn(size, 3, generator=generator),
            }
        )
    return made


def random_numbers_start_over() -> None:
    """Do nothing: only in TensorFlow does leaving a network of FastEstimator's do this."""


def network_class(lib: Any) -> Any:
    return lib.network.TorchNetwork


def tensor(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values))


def dense(inputs: int, outputs: int) -> torch.nn.Module:
    return torch.nn.Sequential(collections.OrderedDict(inner=torch.nn.Linear(inputs, outputs)))


def noisy() -> torch.nn.Module:
    """Make a network that acts differently in training and out of it, and that draws numbers."""
    return torch.nn.Sequential(
        torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Dropout(0.3), torch.nn.Linear(7, 3)
    )


def mlp(width: int = 6, outputs: int = 3) -> torch.nn.Module:
    """Make a small network; its weights follow from torch's seed."""
    return torch.nn.Sequential(
        torch.nn.Linear(width, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs)
    )


def steps(
    network: Any,
    data: Sequence[Mapping[str, Any]],
    mode: str = "train",
    epoch: int = 1,
    ds_id: str = "",
    wanted: set[str] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Open a network, run batches through it, and give the results."""
    with network(
        mode=mode, epoch=epoch, ds_id=ds_id, desired_output_keys=wanted, **settings
    ) as opened:
        return [dict(opened.run_step(batch)) for batch in data]


def one_hot_loss(lib: Any, outputs: str = "loss", y: str = "y", **settings: Any) -> Any:
    """Make a loss that both packages compute by the same calls: results are equal bit for bit."""
    settings.setdefault("mode", "!infer")
    return lib.op.tensorop.loss.CrossEntropy(
        (y, "onehot"), outputs, from_logits=True, form="categorical", **settings
    )


def trainer(lib: Any, model: Any, *more: Any, **settings: Any) -> Any:
    """Make a network that trains a model on one-hot classes."""
    models = lib.op.tensorop.model
    return lib.Network(
        [
            models.ModelOp(model, "x", "y"),
            one_hot_loss(lib),
            *more,
            models.UpdateOp(model, "loss", **settings),
        ]
    )


def adam(rate: float) -> Any:
    return lambda params: torch.optim.Adam(params, lr=rate)


def momentum() -> Any:
    return lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)


def momenta(model: Any) -> Any:
    """Return what a model's optimizer remembers."""
    return model.current_optimizer.state_dict()["state"]


def weights(model: Any) -> Any:
    """Return a model's weights as they are now, and which of its layers train."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    return state, [module.training for module in model.modules()]


def freeze(model: Any, first: bool, last: bool) -> None:
    """Decide which of the two layers of an `mlp` are not trained."""
    model[0].requires_grad_(not first)
    model[2].requires_grad_(not last)
