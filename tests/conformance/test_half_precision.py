"""Every tensor op on float16 and bfloat16: what type comes of it, and how near to exact it is.

The types are FastEstimator's where it has a result: it has none for UnHadamard, L2Regularizaton,
SuperLoss, MixUpBatch, OneOf and most class weights in TensorFlow. Two ops keep the type that they
are given where FastEstimator gives float32: MixUpBatch in torch, and L1_Loss "Huber" in TensorFlow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.loss import L2Regularization, MeanSquaredError
from fastnet.op.tensorop.model import ModelOp, UpdateOp
from tests.conformance.catalogue import FORMS, ROWS, Row
from tests.conformance.frameworks import Array, Framework, make_layers
from tests.conformance.oracle import Line, make_batches

# how far apart numbers about 1 are
SPACINGS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}

# what comes out where it is not the type that went in, by framework
OTHER_TYPES = {
    "Argmax": {"torch": "int64", "tf": "int64"},
    "Normalize": {"torch": "float32", "tf": "float32"},
    "Resize3D area": {"tf": "float32"},
    "UnHadamard": {"torch": "float32", "tf": "float32"},
    "ModelOp": {"tf": "float32"},
    # torch's own type of a truth that is no float
    "CrossEntropy categorical": {"torch": "float32"},
    "CrossEntropy weighted": {"torch": "float32"},
    "L2Regularization": {"torch": "float32", "tf": "float32"},
    "L2Regularizaton": {"torch": "float32", "tf": "float32"},
}

# a form with a type of its own
(AREA,) = [form for form in FORMS if str(form) == "Resize3D area"]

# torch does not multiply halves by the float32 weights of a model
HAS_MODEL = ("ModelOp", "UpdateOp")


def name_of(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def halved(fw: Framework, batch: dict[str, Array], half: str) -> dict[str, Any]:
    """Make tensors, all that are floating point of a half type."""
    return {
        key: fw.cast(fw.tensor(value), half) if value.dtype.kind == "f" else fw.tensor(value)
        for key, value in batch.items()
    }


def widened(fw: Framework, tensors: dict[str, Any]) -> dict[str, Array]:
    """Read tensors, all that are floating point as float32."""
    return {
        key: fw.array(fw.cast(value, "float32") if "float" in name_of(value.dtype) else value)
        for key, value in tensors.items()
    }


def close(actual: Array, expected: Any, spacing: float, least: float = 1) -> None:
    """Compare to some roundings of what is as large as the largest of them."""
    expected = np.asarray(expected, "float64")
    assert actual.shape == expected.shape
    rough = 4 * spacing
    np.testing.assert_allclose(actual, expected, rough, rough * max(least, np.abs(expected).max()))


@pytest.mark.parametrize("half", list(SPACINGS))
@pytest.mark.parametrize("row", [*ROWS, AREA], ids=str)
# Ops in graphs have the types of eager ones.
@pytest.mark.parametrize("fw", ["torch", "tf-eager"], indirect=True)
def test_types_values_and_gradients(fw: Framework, row: Row, half: str) -> None:
    ops = row.ops(fw)
    if row.by:
        ops = [Watch(row.by), *ops, GradientOp("y", "dy", inputs=row.by)]
    network = fw.network(ops)
    given = halved(fw, row.batch_for(fw), half)
    with fw.opened(network, "train"):
        if str(row) in HAS_MODEL and fw.target == "torch":
            with pytest.raises(RuntimeError):
                network.run_step(given)
            return
        result = network.run_step(given)
    written = {key: result[key] for key in row.writes}
    dtype = OTHER_TYPES.get(str(row), {}).get(fw.target, half)
    assert {name_of(value.dtype) for value in written.values()} <= {dtype}
    batch = row.channels_last(fw, widened(fw, given))
    values = row.channels_last(fw, widened(fw, written))
    spacing = SPACINGS[half]
    if row.check:
        row.check(batch, values, 8 * spacing)
        return
    assert row.compute
    for key, expected in row.compute(batch).items():
        close(values[key], expected, spacing)
    if row.by:
        assert name_of(result["dy"].dtype) == half
        slopes = row.channels_last(fw, widened(fw, {row.by: result["dy"]}))
        close(slopes[row.by], row.gradient(batch), spacing, least=0)


@pytest.mark.parametrize("half", list(SPACINGS))
def test_training_by_a_loss_of_half_precision(fw: Framework, half: str) -> None:
    kernel, bias = make_layers(3, 2)[0]
    model = fw.build([(kernel, bias)], fw.sgd(0.1))
    network = fw.network(
        [
            ModelOp(model, "x", "p"),
            LambdaOp(lambda p: fw.cast(p, half), "p", "p"),
            MeanSquaredError(("p", "t"), "loss"),
            GradientOp("loss", "grads", model=model, mode="train"),
            UpdateOp(model, "loss"),
        ]
    )
    batch = make_batches(1)[0]
    given = {"x": fw.tensor(batch["x"]), **halved(fw, {"t": batch["t"]}, half)}
    with fw.opened(network, "train"):
        result = network.run_step(given)
    assert name_of(result["loss"].dtype) == half
    by_kernel, by_bias = Line(kernel, bias).gradients(batch)
    grads = [fw.array(one) for one in result["grads"]]
    assert [one.dtype for one in grads] == ["float32"] * 2, "as the weights are"
    found = grads[0].T if fw.target == "torch" else grads[0]
    close(found, by_kernel, SPACINGS[half], least=0)
    close(grads[1], by_bias, SPACINGS[half], least=0)
    # what the update took are the same gradients
    np.testing.assert_allclose(fw.weights(model)[0], kernel - 0.1 * found, 1e-5, 1e-6)
    np.testing.assert_allclose(fw.weights(model)[1], bias - 0.1 * grads[1], 1e-5, 1e-6)


@pytest.mark.parametrize(("given", "wider"), [("float16", "float32"), ("float64", "float64")])
def test_weights_are_added_to_a_loss_in_the_wider_type(
    fw: Framework, given: str, wider: str
) -> None:
    network = fw.network([L2Regularization("loss", "y", fw.build(make_layers(3, 2)), beta=1.0)])
    with fw.opened(network):
        result = network.run_step({"loss": fw.cast(fw.tensor(np.array(0.25)), given)})
    assert name_of(result["y"].dtype) == wider
    squares = sum(float((one**2).sum()) for one in make_layers(3, 2)[0])
    np.testing.assert_allclose(fw.array(result["y"]), 0.25 + squares / 2, 1e-5)
