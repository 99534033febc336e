"""One program, run in two packages, and what came of it compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

# every module of tests here imports this one, and so is skipped where there is nothing to compare
pytest.importorskip(
    "fastestimator",
    reason="compares fastnet with FastEstimator 1.7.0, which is not installed here: `make test-fe`",
)

# float32's own rounding, once or twice over
LOSS = 1e-6
WEIGHTS = 1e-5

Program = Callable[[Any], Any]


class Sides:
    """FastEstimator and fastnet, for programs that are given one of them as an argument.

    Both have the same import paths, so a program says `lib.op.tensorop.LambdaOp` and means the
    class of the package that it runs in. That a program needs nothing else is itself what is
    tested.
    """

    def __init__(self, fastestimator: ModuleType, fastnet: ModuleType) -> None:
        self.fastestimator = fastestimator
        self.fastnet = fastnet

    def run(self, program: Program, seed: int = 0) -> tuple[Any, Any]:
        """Run a program in both, from the same seeds; FastEstimator's result comes first."""
        results = []
        for lib in (self.fastestimator, self.fastnet):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            results.append(program(lib))
        return results[0], results[1]

    def agree(self, program: Program, rtol: float = 0.0, seed: int = 0) -> Any:
        """Check that a program has the same result in both, and give fastnet's.

        Without a tolerance the same means equal to the bit.
        """
        expected, actual = self.run(program, seed)
        assert_same(actual, expected, rtol)
        return actual


def assert_same(actual: Any, expected: Any, rtol: float = 0.0, path: str = "result") -> None:
    """Compare two nests: values, shapes, dtypes, keys.

    Models stand for their weights. A ChainMap counts as the dict that it looks like, and floats
    are compared like tensors.
    """
    if isinstance(expected, torch.nn.Module):
        actual, expected = actual.state_dict(), expected.state_dict()
    if isinstance(expected, (torch.Tensor, np.ndarray, float)):
        assert isinstance(actual, type(expected)), f"{path}: {actual!r} is not like {expected!r}"
        torch.testing.assert_close(
            actual,
            expected,
            rtol=rtol,
            atol=rtol / 10,
            equal_nan=True,
            msg=lambda text: f"{path}: {text}",
        )
    elif isinstance(expected, Mapping):
        assert isinstance(actual, Mapping), path
        assert set(actual) == set(expected), path
        for key in expected:
            assert_same(actual[key], expected[key], rtol, f"{path}[{key!r}]")
    elif isinstance(expected, Sequence) and not isinstance(expected, str):
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


def momenta(model: Any) -> Any:
    """Give what a model's optimizer remembers."""
    return model.current_optimizer.state_dict()["state"]
