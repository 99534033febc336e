"""Tests of the keys that a step reads, moves and returns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from fastnet.op.tensorop.foreign_op import models_and_gradients
from tests.kernel.ops import Delete, Op, Slicer, resolve
from tests.reference import Kernel

pytestmark = pytest.mark.fast

MANY = [f"key{number}" for number in range(200)]


def keys_of(resolution: Any) -> tuple[set[str], set[str], set[str]]:
    return (
        resolution.inputs.names(),
        resolution.device_inputs.names(),
        resolution.outputs.names(),
    )


class TestKeySet:
    @pytest.mark.parametrize("count", [1, 63, 64, 65, 127, 128, 129, 200])
    def test_more_keys_than_bits_in_a_word(self, kernel: Kernel, count: int) -> None:
        table = kernel.KeyTable()
        everything = kernel.KeySet(table, MANY[:count])
        last = kernel.KeySet(table, [MANY[count - 1]])
        assert list(everything) == MANY[:count]
        assert len(everything) == count
        assert list(last) == [MANY[count - 1]]
        assert len(last) == 1
        assert MANY[count - 1] in everything
        assert (MANY[0] in last) == (count == 1)


def test_a_key_is_a_string(kernel: Kernel) -> None:
    with pytest.raises(TypeError, match="a key is a string, not 1 of type int"):
        kernel.KeyTable().intern(1)


class TestIsCurrent:
    """Whether the keys and settings of an item are those that its spec has read."""

    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ("inputs", ["y"]),
            ("inputs", ["x", "y"]),
            ("outputs", []),
            ("in_list", True),
            ("out_list", True),
            ("mode", {"eval"}),
            ("mode", None),
            ("ds_id", {"!a"}),
            ("forward", abs),
            ("models", [[1]]),  # equal, but another model
            ("retain", None),
        ],
    )
    def test_a_changed_op(self, kernel: Kernel, attribute: str, value: Any) -> None:
        op = Trained([[1]], retain=True)
        op.inputs, op.outputs, op.mode = ["x"], ["z"], {"train"}
        spec = kernel.OpSpec(op, kernel.KeyTable(), read_models=models_and_gradients)
        assert spec.is_current()
        setattr(op, attribute, value)
        assert not spec.is_current()

    def test_keys_changed_in_place(self, kernel: Kernel) -> None:
        op = Op(["x", "y"], ["z"])
        spec = kernel.OpSpec(op, kernel.KeyTable())
        op.inputs.reverse()
        assert not spec.is_current()
        op.inputs.reverse()
        assert spec.is_current()

    def test_equal_values_are_no_change(self, kernel: Kernel) -> None:
        first, second = [1], [1]
        op = Trained([first, second], retain=True)
        spec = kernel.OpSpec(op, kernel.KeyTable(), read_models=models_and_gradients)
        op.models, op.mode, op.inputs, op.retain = [second, first], [], (), False
        assert spec.is_current()

    @pytest.mark.parametrize(
        ("attribute", "value"),
        [
            ("slice_inputs", ["x"]),
            ("unslice_inputs", ["x", "y"]),
            ("mode", {"train"}),
            ("ds_id", {"a"}),
        ],
    )
    def test_a_changed_slicer(self, kernel: Kernel, attribute: str, value: Any) -> None:
        slicer = Slicer(["x", "y"], ["y"])
        spec = kernel.SlicerSpec(slicer, kernel.KeyTable())
        slicer.slice_inputs.reverse()
        assert spec.is_current()
        setattr(slicer, attribute, value)
        assert not spec.is_current()


class TestGather:
    def test_each_model_once_in_the_order_of_the_ops(self, kernel: Kernel) -> None:
        # Models are compared by identity.
        a, b, c = [1], [1], [2]
        ops = [Trained([a]), Trained([b, a], retain=False), Op(), Trained([c, b], retain=True)]
        table = kernel.KeyTable()
        specs = [kernel.OpSpec(op, table, read_models=models_and_gradients) for op in ops]
        found, forwards, models, gradient_indices = kernel.gather(specs)
        assert found == ops
        assert forwards == [op.forward for op in ops]
        assert [id(model) for model in models] == [id(a), id(b), id(c)]
        assert gradient_indices == [1, 3]


class Trained(Op):
    """An op with the methods of FastEstimator's trainable ops."""

    def __init__(self, models: list[Any], retain: bool | None = None) -> None:
        super().__init__()
        self.models = models
        self.retain = retain

    def get_fe_models(self) -> list[Any]:
        return self.models

    def fe_retain_graph(self, retain: bool | None = None) -> bool | None:
        return self.retain


class Table(dict[Any, Any]):
    """A dict of a class of its own."""


class TestSameEntries:
    @pytest.mark.parametrize(
        ("change", "is_same"),
        [
            (lambda flags, table: None, True),
            (lambda flags, table: flags.update(other=2), True),
            (lambda flags, table: flags.update(on=1), False),  # equal, but another object
            (lambda flags, table: flags.pop("on"), False),
            (lambda flags, table: table.update(a=[]), False),
            (lambda flags, table: table.update(c=None), False),
            (lambda flags, table: table.pop("b"), False),
            (lambda flags, table: table.update(x=table.pop("b")), False),
            (lambda flags, table: table.update(b=table.pop("b")), True),
            (lambda flags, table: table.clear(), False),
        ],
    )
    @pytest.mark.parametrize("kind", [dict, OrderedDict, Table])
    def test_changes(
        self,
        kernel: Kernel,
        kind: Callable[..., Any],
        change: Callable[[Any, Any], Any],
        is_same: bool,
    ) -> None:
        flags, table, empty = kind({"on": True, "other": 1}), kind({"a": [], "b": None}), kind()
        entries = [(flags, "on", True), (table, "a", table["a"]), (table, "b", None)]
        assert kernel.same_entries(entries, [table, empty], 2)
        change(flags, table)
        assert kernel.same_entries(entries, [table, empty], 2) is is_same

    def test_an_addition_to_an_empty_table(self, kernel: Kernel) -> None:
        table: dict[str, Any] = {}
        assert kernel.same_entries([], [table], 0)
        table["a"] = None
        assert not kernel.same_entries([], [table], 0)


# Ops, postprocessing ops, slicers and desired keys; then the inputs, device inputs and outputs.
RESOLVED: dict[str, tuple[Any, Any, Any, Any, tuple[str, str, str]]] = {
    "a chain": ([Op("x", "y"), Op(["y", "l"], "z")], [], [], None, ("xl", "xl", "yz")),
    # No op writes x or u.
    "desired": ([Op("x", "y"), Op("y", "z")], [], [], ["z", "x", "u"], ("x", "x", "z")),
    "read by postprocessing": (
        [Op("x", "y"), Op("y", "z")], [Op("y", "s")], [], {"z"}, ("x", "x", "yz"),
    ),
    "deleted": ([Op("x", ["y", "z"]), Delete("y")], [], [], None, ("x", "x", "z")),
    "deleted from the batch": (
        [Delete(["x", "w"]), Op(None, "y")], [], [], None, ("xw", "xw", "y"),
    ),
    "deleted by postprocessing": (
        [Op("x", ["y", "z"])], [Op("y", "p"), Delete("p"), Delete("y")], [], None, ("x", "x", "z"),
    ),
    "sliced": ([Op("x", "y")], [], [Slicer(["x", "w"], ["y"])], None, ("xw", "x", "y")),
    "unsliced": ([Op("x", "y")], [], [Slicer(["x"], ["y", "w"])], None, ("xw", "x", "y")),
    "several slicers": (
        [Op(["x", "w"], ["y", "z"])],
        [],
        [Slicer(["x"], []), Slicer([], ["y"]), Slicer(["w"], ["z"])],
        None,
        ("xw", "xw", "yz"),
    ),
    # FastEstimator refuses keys that only postprocessing writes.
    "sliced, written by postprocessing": (
        [Op("x", ["y", "z"])], [Op("y", "z"), Op("z", "x")], [Slicer(["x"], ["y"])], None,
        ("x", "x", "yzx"),
    ),
    "sliced, only deleted by postprocessing": (
        [Op("x", ["y", "z"])], [Delete(["z", "x"]), Op("y", "p")], [Slicer(["x"], ["y"])], {"y"},
        ("x", "x", "xyz"),
    ),
    "slicers without keys": ([Op("x", "y")], [], [Slicer([], [])], None, ("x", "x", "y")),
}  # fmt: skip

# Keys that are sliced, and that no slicer unslices.
NOT_UNSLICED: dict[str, tuple[Any, Any, Any, list[str]]] = {
    "outputs": ([Op("x", ["z", "b", "y"])], [], {"z", "b"}, ["b", "z"]),
    "read and written later": ([Op("x", ["y", "z"])], [Op("z", "p"), Op("y", "z")], None, ["z"]),
    # p would be made of the first piece alone
    "read and deleted": ([Op("x", ["y", "z"])], [Op("z", "p"), Delete("z")], None, ["z"]),
}


class TestResolve:
    @pytest.mark.parametrize("case", RESOLVED)
    def test_keys(self, kernel: Kernel, case: str) -> None:
        ops, pops, slicers, desired, expected = RESOLVED[case]
        resolution = resolve(kernel, ops, pops, slicers, desired)
        assert keys_of(resolution) == tuple(map(set, expected))

    @pytest.mark.parametrize("case", NOT_UNSLICED)
    def test_keys_that_no_slicer_unslices(self, kernel: Kernel, case: str) -> None:
        ops, pops, desired, keys = NOT_UNSLICED[case]
        unslices = [] if case == "outputs" else ["y"]
        with pytest.raises(ValueError, match="unslices") as caught:
            resolve(kernel, ops, pops, [Slicer(["x"], unslices)], desired, "mode 'train', epoch 3")
        assert f"The keys {keys} are" in str(caught.value)
        assert "(mode 'train', epoch 3)" in str(caught.value)

    def test_keys_that_postprocessing_reads_and_deletes_are_returned_to_it(
        self, kernel: Kernel
    ) -> None:
        pops = [Op("y", "p"), Delete("y"), Delete("x")]
        resolution = resolve(kernel, [Op("x", ["y", "z"])], pops)
        assert keys_of(resolution) == ({"x"}, {"x"}, {"z", "p"})
        # x is in the batch.
        assert resolution.returned.names() == {"y", "z", "p"}
        resolution = resolve(kernel, [Op("x", ["y", "z"])], pops, desired={"p"})
        assert resolution.returned.names() == {"x", "y", "p"}


class TestMisuse:
    """Wrong arguments raise an error instead of crashing the interpreter."""

    def test_none_among_specs(self, kernel: Kernel) -> None:
        if not kernel.compiled:
            pytest.skip("the reference cannot crash")
        table = kernel.KeyTable()
        keys = kernel.KeySet(table)
        for call in (
            lambda: kernel.gather([None]),
            lambda: kernel.Resolution(None, keys, keys),
            lambda: kernel.Resolution(keys, keys, None),
            lambda: kernel.select([None], "train", ""),
            lambda: kernel.resolve(table, [None], [], []),
            lambda: kernel.resolve(table, [], [None], []),
            lambda: kernel.resolve(table, [], [], [None]),
            lambda: kernel.KernelPlan(table, [None], [print], kernel.resolve(table, [], [], [])),
        ):
            with pytest.raises(TypeError):
                call()
