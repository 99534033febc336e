"""What all ops have in common, shown for each: where they run, keys, gradients, failing steps."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from fastnet.op.numpyop import Batch, RemoveIf
from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.augmentation import CutMixBatch, MixUpBatch
from fastnet.op.tensorop.gradient import FGSM, GradientOp, Watch
from fastnet.op.tensorop.loss import LossOp, MeanSquaredError, SuperLoss
from fastnet.op.tensorop.meta import OneOf, Repeat, Sometimes
from fastnet.op.tensorop.model import EMA, LRSchedule, UpdateOp
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.catalogue import (
    BITS,
    CLASSES,
    FORMS,
    IMAGES,
    ROWS,
    SIGNS,
    TRUE_MASKS,
    VOLUMES,
    Row,
    X,
    Z,
)
from tests.conformance.failures import check_free
from tests.conformance.frameworks import Array, Framework, tf
from tests.conformance.numpy_catalogue import NUMPY_ROWS

EVERY_ROW = [*ROWS, *NUMPY_ROWS]
every_row = pytest.mark.parametrize("row", EVERY_ROW, ids=str)
# for what is decided before a step is traced
without_graphs = pytest.mark.parametrize("fw", ["torch", "tf-eager"], indirect=True)

# a network refuses these two: see test_bad_contexts.py
OF_PIPELINES = {RemoveIf, Batch}
# they read and write no keys: see tests/op/tensorop/model/test_torch_followers.py
FOLLOWERS = {EMA, LRSchedule}
# whatever they are given, they hand it on
HAND_ON = (TensorOp, LossOp)


def exported(package: str) -> Iterator[type]:
    """Find the classes that a package and its packages name as public."""
    module = import_module(package)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value):
            yield value
        elif inspect.ismodule(value):
            yield from exported(value.__name__)


@pytest.mark.parametrize(
    ("package", "rows"), [("fastnet.op.tensorop", ROWS), ("fastnet.op.numpyop", NUMPY_ROWS)]
)
def test_every_op_is_in_the_catalogue(package: str, rows: list[Row]) -> None:
    ops = {cls for cls in exported(package) if hasattr(cls, "forward")}
    assert len(ops) > 12
    assert ops - OF_PIPELINES - FOLLOWERS == {row.cls for row in rows}


class Probe:
    """A network of a row's ops, and whether the row's own runs in a step of it."""

    def __init__(self, fw: Framework, row: Row, when: Mapping[str, Any]) -> None:
        self.fw, self.row = fw, row
        self.network, self.op = row.network(fw, **when)
        self.batch = row.batch_for(fw)

    def runs(self, mode: str, ds_id: str) -> bool:
        row = self.row
        before = self.fw.weights(self.op.model) if row.cls is UpdateOp else None
        result = self.fw.step(self.network, self.batch, mode, ds_id=ds_id)
        if before is not None:
            after = self.fw.weights(self.op.model)
            return not all(map(np.array_equal, before, after))
        if not row.writes:
            return "gone" not in result
        if row.reads == ("y",):
            # it has been there before, as a copy of x
            return not np.array_equal(result["y"], result["x"])
        written = [key in result for key in row.writes]
        assert all(written) == any(written)
        return all(written)


# a Watch writes nothing else than it reads: see test_changed_limits
@pytest.mark.parametrize("row", [row for row in EVERY_ROW if row.cls is not Watch], ids=str)
@without_graphs
def test_modes_and_datasets(fw: Framework, row: Row) -> None:
    everywhere = "ds_id" not in row.limits
    excluding = Probe(fw, row, {"mode": "!train", "ds_id": "a"})
    assert excluding.runs("infer", "a")
    assert not excluding.runs("train", "a")
    assert excluding.runs("eval", "b") == everywhere
    naming = Probe(fw, row, {"mode": ["train", "test"], "ds_id": "!a"})
    assert naming.runs("train", "b")
    assert naming.runs("train", "a") == everywhere
    assert not naming.runs("eval", "b")
    assert not naming.runs("infer", "")


class TestKeys:
    @every_row
    def test_read_and_written(self, fw: Framework, row: Row) -> None:
        network, op = row.network(fw)
        assert tuple(op.inputs) == row.reads
        assert tuple(op.outputs) == row.writes
        stranger = object()
        given = {**fw.tensors(row.batch_for(fw)), "stranger": stranger}
        kept = dict(given)
        with fw.opened(network, "train"):
            result = network.run_step(given)
        ops = [*network.ops, *network.postprocessing]
        deleted = {"gone"} & set(op.inputs)
        assert set(result) == (set(kept).union(*[each.outputs for each in ops])) - deleted
        assert result["stranger"] is stranger
        assert list(given) == list(kept)
        assert all(given[key] is value for key, value in kept.items())

    @every_row
    @without_graphs
    def test_missing_ones_are_named(self, fw: Framework, row: Row) -> None:
        network, op = row.network(fw)
        batch = row.batch_for(fw)
        first = [*network.ops, *network.postprocessing][0]
        for key in batch.keys() & {*first.inputs, *op.inputs}:
            reader = first if key in first.inputs else op
            rest = {other: value for other, value in batch.items() if other != key}
            with pytest.raises(KeyError) as caught:
                fw.step(network, rest, "train")
            assert type(reader).__name__ in str(caught.value)
            assert f"the key '{key}'" in str(caught.value)
            check_free(network)


@pytest.mark.fast
@pytest.mark.parametrize("row", [*ROWS, *FORMS], ids=str)
@conforms
def test_values_and_gradients(fw: Framework, row: Row) -> Any:
    return check_row(fw, row)


@pytest.mark.filterwarnings("ignore:Steps of mode")
@pytest.mark.parametrize("row", [*ROWS, *FORMS], ids=str)
@pytest.mark.parametrize("fw", ["torch-compiled"], indirect=True)
def test_values_and_gradients_of_compiled_steps(fw: Framework, row: Row) -> None:
    check_row(fw, row, steps=2)  # The first step runs eagerly.


def check_row(fw: Framework, row: Row, steps: int = 1) -> Any:
    """Compare the last of some equal steps with numpy, and return its results."""
    ops = row.ops(fw)
    if row.by:
        ops = [Watch(row.by), *ops, GradientOp("y", "dy", inputs=row.by)]
    *_, result = fw.steps(fw.network(ops), [row.batch_for(fw)] * steps, "train")
    result = row.channels_last(fw, result)
    check_values(row, result)
    if row.check:
        return [sorted(result)]
    if row.by:
        slopes = row.channels_last(fw, {row.by: result["dy"]})[row.by]
        assert slopes.dtype == "float32"
        np.testing.assert_allclose(slopes, row.gradient(row.batch), 1e-4, 1e-5)
        result["dy"] = slopes
    return result


# for the rows of these names: values of a wrong rank, length or type
WRONG_VALUES: dict[str, dict[str, Array]] = {
    "Argmax": {"x": X[:, 0]},
    "Average": {"z": Z[:, :2]},
    "Normalize": {"x": IMAGES[..., :2]},
    "Permute": {"x": X[None]},
    "Resize3D nearest": {"x": VOLUMES[0]},
    "UnHadamard": {"x": X},
    "ModelOp": {"x": X[:, :2]},
    "FGSM": {"x": CLASSES, "z": CLASSES},
    "CrossEntropy binary": {"t": BITS[:, :2]},
    "CrossEntropy categorical": {"t": BITS[:, :2]},
    "CrossEntropy sparse": {"t": TRUE_MASKS},
    "DiceLoss": {"t": TRUE_MASKS[..., :2]},
    "FocalLoss logits": {"t": BITS[:, :2]},
    "Hinge": {"t": SIGNS[:, :2]},
    "L1_Loss L1": {"t": Z[:, :2]},
    "MeanSquaredError": {"t": Z[:, :2]},
    "SuperLoss": {"t": Z[:, :2]},
    "CutMixBatch": {"x": X},
    "MixUpBatch": {"l": X[0, 0]},
    "numpy LambdaOp": {"z": X[:, :2]},
    "numpy ChannelTranspose": {"x": X},
    "numpy Hadamard": {"x": CLASSES + 5},
    "numpy Onehot": {"x": X},
    "numpy Reshape": {"x": X},
}


@every_row
def test_a_network_is_as_before_a_step_that_fails(fw: Framework, row: Row) -> None:
    batch = row.batch_for(fw)
    network, op = row.network(fw)
    first = next(iter(batch))
    bad: dict[str, Any] = {**batch, first: None}
    if row.cls in HAND_ON:
        del bad[first]
    spoiled = [bad]
    if str(row) in WRONG_VALUES:
        wrong = {**row.batch, **WRONG_VALUES[str(row)]}
        spoiled.append(dataclasses.replace(row, batch=wrong).batch_for(fw))
    with fw.opened(network, "train"):
        for each in spoiled:
            # The framework decides on the type of the error.
            with pytest.raises(Exception) as caught:  # noqa: PT011
                network.run_step(fw.tensors(each))
            words = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
            # numbers without gradients are already no use to the Watch in front of FGSM
            ops = [*network.ops, *network.postprocessing]
            named = ops if each is bad or row.cls is FGSM else [op]
            assert any(type(one).__name__ in words for one in named)
        assert not network.ctx_state["deferred"]
        after = fw.arrays(network.run_step(fw.tensors(batch)))
    check_free(network)
    check_values(row, row.channels_last(fw, after))
    if row.cls is UpdateOp:
        fresh, other = row.network(fw)
        fw.step(fresh, batch, "train")
        assert_same(fw.weights(op.model), fw.weights(other.model))
    again = fw.step(network, batch, "train")
    check_values(row, row.channels_last(fw, again))
    assert set(again) == set(after)


def check_values(row: Row, result: Mapping[str, Array]) -> None:
    """Compare what an op has written with what it must write."""
    if row.check:
        row.check(row.batch, result, 1e-5)
        return
    assert row.compute
    wide = {
        key: value.astype("float64") if value.dtype.kind == "f" else value
        for key, value in row.batch.items()
    }
    for key, expected in row.compute(wide).items():
        assert result[key].shape == np.shape(expected)
        np.testing.assert_allclose(result[key], expected, 1e-5, 1e-5)


class TestOutsideNetworks:
    """Ops that no network has built: their constructor, then `forward`."""

    @pytest.mark.parametrize("row", ROWS, ids=str)
    @without_graphs
    def test_values(self, fw: Framework, row: Row) -> None:
        store = fw.tensors(row.batch_for(fw))
        ops = row.ops(fw)
        state: dict[str, Any] = {"mode": "train", "epoch": 1, "warmup": False, "req_grad": True}
        with tf.GradientTape(persistent=True) if fw.target == "tf" else nullcontext() as tape:
            state.update(eager=True, deferred={}, tape=tape)
            for op in ops:
                data = [store[key] for key in op.inputs]
                result = op.forward(data if op.in_list else data[0], state)
                if op.outputs:
                    store.update(zip(op.outputs, result if op.out_list else [result], strict=True))
        written = {key: store[key] for key in row.writes}
        if fw.target == "torch":
            written = {key: value.detach() for key, value in written.items()}
        check_values(row, row.channels_last(fw, fw.arrays(written)))
        if row.cls is UpdateOp:
            in_a_network, op = row.network(fw)
            fw.step(in_a_network, row.batch_for(fw), "train")
            assert_same(fw.weights(ops[-1].model), fw.weights(op.model))

    @pytest.mark.parametrize(
        "op",
        [
            OneOf(LambdaOp(lambda x: x, "x", "x"), LambdaOp(lambda x: -x, "x", "x")),
            Sometimes(LambdaOp(lambda x: x, "x", "x")),
            Repeat(LambdaOp(lambda x: x, "x", "x"), repeat=lambda x: False),
            MixUpBatch(("x", "y"), ("x", "y")),
            CutMixBatch(("x", "y"), ("x", "y")),
            SuperLoss(MeanSquaredError(("x", "y"), "z")),
        ],
        ids=lambda op: type(op).__name__,
    )
    def test_arrays_where_an_op_needs_tensors(self, op: Any) -> None:
        array = np.ones((2, 4, 4, 3), "float32")
        with pytest.raises(TypeError, match="runs on tensors of torch or TensorFlow, but got an"):
            op.forward([array] * len(op.inputs), {"mode": "train", "warmup": False})
