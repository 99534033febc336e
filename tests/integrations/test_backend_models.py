"""The backend's functions about models, losses and conversions, beside FastEstimator's.

Results are equal to the bit but where a rounding is named; see also test_backend_functions.py.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integrations import sides as torch_sides
from tests.integrations import tf_sides
from tests.integrations.sides import Sides
from tests.integrations.test_backend_functions import MAKERS, TENSORS, bits, check, random, shares
from tests.integrations.tf_sides import MARKS, tf
from tests.integrations.torchvision_stand_in import complete_fastestimator

pytestmark = MARKS

# one float32 rounding up or down: torch's fused functions sum in another order
ROUNDING = 2.4e-7

ALL = pytest.mark.parametrize("framework", ["torch", "tf", "numpy"])


@pytest.fixture(scope="module", autouse=True)
def _whole_fastestimator() -> Iterator[None]:
    with complete_fastestimator():
        yield


def agree(sides: Sides, framework: str, program: Any, rtol: float = 0.0) -> Any:
    """Run a program with a library, a model and a function that makes tensors."""
    tools: Any = torch_sides if framework == "torch" else tf_sides

    def run(lib: Any) -> Any:
        model = lib.build(tools.mlp, "adam", model_name="mlp")
        return program(lib.backend, model, MAKERS[framework])

    if framework == "torch":
        return sides.agree(run, rtol)
    return tf_sides.agree(sides, run, rtol)


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else tf.convert_to_tensor(value)


@TENSORS
@pytest.mark.parametrize("weights", [None, {0: 0.5, 1: 3.0}])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("logits", [True, False])
def test_cross_entropies(
    sides: Sides, framework: str, weights: Any, average: bool, logits: bool
) -> None:
    scores = random(6, 3)
    predicted = scores if logits else np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    classes = np.array([2, 0, 1, 2, 1, 0])
    settings: Any = {"from_logits": logits, "average_loss": average}
    rounding = ROUNDING if framework == "torch" else 0.0

    def weighting(b: Any) -> Any:
        """Return weights as the function takes them: FastEstimator's in TensorFlow is a table."""
        if weights is None or framework == "torch" or b is sides.fastnet.backend:
            return weights
        keys, values = tf.constant(list(weights)), tf.constant(list(weights.values()))
        return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, values), 1.0)

    def categorical(b: Any, t: Any) -> Any:
        truth = t(np.eye(3, dtype="float32")[classes])
        return b.categorical_crossentropy(
            y_pred=t(predicted), y_true=truth, class_weights=weighting(b), **settings
        )

    def sparse(b: Any, t: Any) -> Any:
        return b.sparse_categorical_crossentropy(
            y_pred=t(predicted), y_true=t(classes), class_weights=weighting(b), **settings
        )

    def binary(b: Any, t: Any) -> Any:
        single = t(random(6, 1) if logits else shares(6, 1))
        return b.binary_crossentropy(
            y_pred=single, y_true=t(bits(6, 1)), class_weights=weighting(b), **settings
        )

    check(sides, categorical, framework)
    check(sides, sparse, framework, rounding)
    check(sides, binary, framework)


@TENSORS
@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 3, 4)])
def test_mean_squared_error(sides: Sides, framework: str, shape: Any) -> None:
    check(
        sides,
        lambda b, t: b.mean_squared_error(
            y_true=t(random(*shape)), y_pred=t(random(*shape, seed=1))
        ),
        framework,
        ROUNDING if framework == "torch" else 0.0,
    )


@ALL
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"mean": 0.4, "std": 0.2, "max_pixel_value": 1.0},
        {"mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7], "epsilon": 1e-3},
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_normalize(sides: Sides, framework: str, settings: Any, dtype: str) -> None:
    # as many channels as rows, so that each framework finds three of them
    images = (shares(2, 3, 3, 3) * 255).astype(dtype)
    check(sides, lambda b, t: b.normalize(t(images), **settings), framework)


class TestConversions:
    @pytest.mark.parametrize("target", ["torch", "tf", "np"])
    @ALL
    def test_to_tensor(self, sides: Sides, framework: str, target: str) -> None:
        def program(b: Any, model: Any, t: Any) -> Any:
            nest = {"a": t(random(2, 3)), "b": [t(bits(2)), (3, 4.5)], "c": "text", "d": None}
            found = b.to_tensor(nest, target)
            b0, (b1, b2) = found["b"]
            assert (found["c"], found["d"]) == ("text", None)
            kinds = [type(one).__name__ for one in (found["a"], b0, b1, b2)]
            return kinds, [np.asarray(one) for one in (found["a"], b0, b1, b2)]

        tf_sides.agree(sides, lambda lib: program(lib.backend, None, MAKERS[framework]))

    @ALL
    def test_types_and_shapes(self, sides: Sides, framework: str) -> None:
        def program(lib: Any) -> Any:
            t = MAKERS[framework]
            nest = {"a": t(random(2, 3)), "b": [t(bits(2, dtype="int64")), (t(random(1)),)]}
            shapes = [
                lib.backend.to_shape(nest, **settings)
                for settings in ({}, {"add_batch": True}, {"exact_shape": False})
            ]
            return str(lib.backend.to_type(nest)), [str(shape) for shape in shapes]

        expected, actual = tf_sides.run(sides, program)
        assert actual == expected


class TestModels:
    @TENSORS
    @pytest.mark.parametrize("training", [True, False])
    def test_feed_forward(self, sides: Sides, framework: str, training: bool) -> None:
        def program(b: Any, model: Any, t: Any) -> Any:
            x = random(4, 6)
            return [detached(b.feed_forward(model, one, training=training)) for one in (t(x), x)]

        agree(sides, framework, program)

    @TENSORS
    def test_gradients_and_updates(self, sides: Sides, framework: str) -> None:
        def program(b: Any, model: Any, t: Any) -> Any:
            def weights() -> Any:
                if framework == "tf":
                    return model.trainable_variables
                return list(model.parameters())

            told: list[Any] = [float(b.get_lr(model)), detached(b.reduce_sum(t(random(2))))]
            for rate in (None, 0.02, 0.001):
                if rate is not None:
                    b.set_lr(model, rate)
                with tf.GradientTape(persistent=True) as tape:
                    x = b.watch(t(random(4, 6)), tape=tape)
                    loss = b.reduce_mean(b.pow(b.feed_forward(model, x), 2))
                    told.append(detached(b.get_gradient(loss, x, tape=tape)))
                    gradients = b.get_gradient(loss, weights(), tape=tape, retain_graph=False)
                told += [detached(one) for one in gradients]
                b.update_model(model, gradients)
                told.append(float(b.get_lr(model)))
            return told, model

        agree(sides, framework, program)

    @TENSORS
    def test_updates_put_off(self, sides: Sides, framework: str) -> None:
        def program(b: Any, model: Any, t: Any) -> Any:
            variables = model.trainable_variables if framework == "tf" else model.parameters()
            gradients = [t(np.full(tuple(one.shape), 0.5, "float32")) for one in variables]
            deferred: dict[str, list[Any]] = {}
            b.update_model(model, gradients, defer=True, deferred=deferred)
            before = [np.array(detached(one)) for one in variables]
            for wait in deferred["mlp"]:
                wait()
            return before, list(deferred), len(deferred["mlp"]), model

        agree(sides, framework, program)

    @TENSORS
    @pytest.mark.parametrize("beta", [0.01, 2.0])
    def test_l2_regularization(self, sides: Sides, framework: str, beta: float) -> None:
        def program(b: Any, model: Any, t: Any) -> Any:
            if b.__name__.startswith("fastestimator"):
                module = importlib.import_module("fastestimator.backend._l2_regularization")
                return detached(module.l2_regularization(model, beta))
            return detached(b.l2_regularization(model, beta))

        agree(sides, framework, program)


def test_no_function_is_left_out(sides: Sides) -> None:
    """Every function that both packages export is called here or in test_backend_functions.py."""
    both = set(dir(sides.fastestimator.backend)) & set(sides.fastnet.backend.__all__)
    here = Path(__file__)
    text = here.read_text() + (here.parent / "test_backend_functions.py").read_text()
    called = set(re.findall(r"\bb(?:ackend)?\.(\w+)\(", text))
    # those that are called by name, from a table
    called |= set(re.findall(r'"(reduce_\w+|hinge|l1_loss|smooth_l1_loss|huber)"', text))
    called |= {"load_model", "save_model"}  # in test_tf_build.py and swap/test_files.py
    assert both - called == set()
    assert len(both) > 60
