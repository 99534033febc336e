"""Tests of the keys that a step reads, moves and returns."""

from __future__ import annotations

import gc
import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kernel.ops import Delete, Op, Slicer, resolve, specs_of
from tests.reference import Kernel

pytestmark = pytest.mark.fast

MANY = [f"key{number}" for number in range(200)]


def keys_of(resolution: Any) -> tuple[set[str], set[str], set[str]]:
    return (
        resolution.inputs.names(),
        resolution.device_inputs.names(),
        resolution.outputs.names(),
    )


class TestKeyTable:
    def test_gives_the_same_id_each_time(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        assert len(table) == 0
        assert [table.intern(key) for key in ["x", "y", "x", "z", "y"]] == [0, 1, 0, 2, 1]
        assert len(table) == 3

    def test_equal_strings_are_one_key(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        assert table.intern("ab" * 50) == table.intern("".join(["ab"] * 50))

    def test_unusual_keys(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        assert [table.intern(key) for key in ["", "ü", "a b", "!", "None"]] == list(range(5))

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            (1, "a key is a string, not 1 of type int"),
            (None, "a key is a string, not None of type NoneType"),
            (b"x", "a key is a string, not b'x' of type bytes"),
        ],
    )
    def test_refuses_other_types(self, kernel: Kernel, key: object, text: str) -> None:
        table = kernel.KeyTable()
        with pytest.raises(TypeError) as caught:
            table.intern(key)
        assert str(caught.value) == text
        assert len(table) == 0

    def test_accepts_classes_derived_from_str(self, kernel: Kernel) -> None:
        class Name(str):
            __slots__ = ()

        table = kernel.KeyTable()
        assert table.intern(Name("x")) == table.intern("x") == 0
        assert Name("x") in kernel.KeySet(table, ["x"])
        resolution = resolve(kernel, [Op([Name("x")], [Name("y")])], desired=[Name("y")])
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y"})


class TestKeySet:
    def test_contains_the_given_keys(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        keys = kernel.KeySet(table, ["y", "x", "y"])
        assert keys.table is table
        assert keys.names() == {"x", "y"}
        assert len(keys) == 2
        assert "x" in keys
        assert "z" not in keys
        assert 5 not in keys
        assert bool(keys)
        assert repr(keys) == "KeySet(['x', 'y'])"

    def test_iterates_in_the_order_of_its_table(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        for key in ["c", "a", "b"]:
            table.intern(key)
        assert list(kernel.KeySet(table, ["b", "c"])) == ["c", "b"]
        assert list(kernel.KeySet(table, iter("abc"))) == ["c", "a", "b"]

    def test_empty(self, kernel: Kernel) -> None:
        keys = kernel.KeySet(kernel.KeyTable())
        assert not keys
        assert len(keys) == 0
        assert list(keys) == []
        assert keys.names() == set()
        assert "x" not in keys

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

    def test_later_keys_of_the_table_are_not_in_it(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        keys = kernel.KeySet(table, ["x"])
        for key in MANY:
            table.intern(key)
        assert MANY[-1] not in keys
        assert keys.names() == {"x"}

    def test_copy(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        keys = kernel.KeySet(table, MANY)
        twin = keys.copy()
        assert twin is not keys
        assert twin.table is table
        assert twin.names() == keys.names()

    def test_names_returns_a_new_set(self, kernel: Kernel) -> None:
        keys = kernel.KeySet(kernel.KeyTable(), ["x"])
        keys.names().add("y")
        assert keys.names() == {"x"}

    def test_needs_a_table(self, kernel: Kernel) -> None:
        with pytest.raises((TypeError, AttributeError)):
            kernel.KeySet(None, ["x"])


class TestSpec:
    @pytest.mark.parametrize(
        ("mode", "runs"),
        [
            (set(), {"train", "eval", "test", "infer"}),
            (None, {"train", "eval", "test", "infer"}),
            ({"train"}, {"train"}),
            (["train"], {"train"}),
            ("train", {"train"}),
            ({"eval", "test", "infer"}, {"eval", "test", "infer"}),
        ],
    )
    def test_mode(self, kernel: Kernel, mode: set[str] | None, runs: set[str]) -> None:
        spec = kernel.Spec(SimpleNamespace(mode=mode, ds_id=set()))
        modes = ["train", "eval", "test", "infer"]
        assert {mode for mode in modes if spec.runs_in(mode, None)} == runs

    @pytest.mark.parametrize(
        ("ds_id", "runs"),
        [
            (set(), {None, "", "a", "b", "c"}),
            (None, {None, "", "a", "b", "c"}),
            ({"a"}, {None, "a"}),
            ("a", {None, "a"}),
            ({"a", "b"}, {None, "a", "b"}),
            ({"!a"}, {None, "", "b", "c"}),
            ({"!a", "!b"}, {None, "", "c"}),
        ],
    )
    def test_ds_id(self, kernel: Kernel, ds_id: set[str] | None, runs: set[str | None]) -> None:
        spec = kernel.Spec(SimpleNamespace(mode=set(), ds_id=ds_id))
        names = [None, "", "a", "b", "c"]
        assert {name for name in names if spec.runs_in("train", name)} == runs

    @pytest.mark.parametrize("ds_id", ["", "a", None])
    def test_mode_and_ds_id_must_both_fit(self, kernel: Kernel, ds_id: str | None) -> None:
        spec = kernel.Spec(SimpleNamespace(mode={"train"}, ds_id={"a"}))
        assert spec.runs_in("train", ds_id) == (ds_id != "")
        assert not spec.runs_in("eval", ds_id)

    def test_an_item_without_restrictions(self, kernel: Kernel) -> None:
        item = object()
        spec = kernel.Spec(item)
        assert spec.item is item
        assert spec.runs_in("train", "")

    @pytest.mark.parametrize(
        ("op", "in_list", "out_list"),
        [
            (Op("x", "y"), False, False),
            (Op(["x"], ["y"]), True, True),
            (Op(), False, False),
            (Op([], []), True, True),
            (Op("x", "y", in_list=True), True, False),
            (Op("x", "y", out_list=True), False, True),
        ],
    )
    def test_op(self, kernel: Kernel, op: Op, in_list: bool, out_list: bool) -> None:
        spec = kernel.OpSpec(op, kernel.KeyTable())
        assert spec.item is op
        assert spec.in_list is in_list
        assert spec.out_list is out_list
        assert spec.deletes is False
        assert kernel.OpSpec(op, kernel.KeyTable(), deletes=True).deletes is True

    def test_op_interns_its_inputs_and_then_its_outputs(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        kernel.OpSpec(Op(["b", "a"], ["c", "a"]), table)
        assert list(kernel.KeySet(table, "abc")) == ["b", "a", "c"]

    def test_slicer(self, kernel: Kernel) -> None:
        slicer = Slicer(["x", "z"], ["y"])
        spec = kernel.SlicerSpec(slicer, kernel.KeyTable())
        assert spec.item is slicer
        assert spec.slices.names() == {"x", "z"}
        assert spec.unslices.names() == {"y"}

    @pytest.mark.parametrize("attribute", ["inputs", "outputs", "in_list", "out_list"])
    def test_an_op_must_have_its_attributes(self, kernel: Kernel, attribute: str) -> None:
        op = Op("x", "y")
        delattr(op, attribute)
        with pytest.raises(AttributeError, match=attribute):
            kernel.OpSpec(op, kernel.KeyTable())

    def test_keys_must_be_strings(self, kernel: Kernel) -> None:
        with pytest.raises(TypeError):
            kernel.OpSpec(Op(["x", 3], "y"), kernel.KeyTable())


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
        spec = kernel.OpSpec(op, kernel.KeyTable())
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
        spec = kernel.OpSpec(op, kernel.KeyTable())
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


class TestSelect:
    def test_keeps_the_order(self, kernel: Kernel) -> None:
        ops = [Op(mode={"train"}), Op(), Op(mode={"eval"}), Op(ds_id={"a"}), Op(ds_id={"!a"})]
        specs = specs_of(kernel, kernel.KeyTable(), ops)
        cases = {
            ("train", "a"): [0, 1, 3],
            ("train", ""): [0, 1, 4],
            ("eval", "b"): [1, 2, 4],
            ("test", None): [1, 3, 4],
        }
        for (mode, ds_id), chosen in cases.items():
            assert kernel.select(specs, mode, ds_id) == [specs[index] for index in chosen]

    def test_nothing(self, kernel: Kernel) -> None:
        assert kernel.select([], "train", "") == []


class TestGather:
    def test_nothing(self, kernel: Kernel) -> None:
        assert kernel.gather([]) == ([], [], [], [])

    def test_ops_without_models(self, kernel: Kernel) -> None:
        ops = [Op("x", "y"), Op("y", "z")]
        specs = specs_of(kernel, kernel.KeyTable(), ops)
        assert [spec.models for spec in specs] == [(), ()]
        assert [spec.takes_gradients for spec in specs] == [False, False]
        assert kernel.gather(specs) == (ops, [op.forward for op in ops], [], [])

    def test_each_model_once_in_the_order_of_the_ops(self, kernel: Kernel) -> None:
        # Models are compared by identity.
        a, b, c = [1], [1], [2]
        ops = [Trained([a]), Trained([b, a], retain=False), Op(), Trained([c, b], retain=True)]
        specs = specs_of(kernel, kernel.KeyTable(), ops)
        found, forwards, models, gradient_indices = kernel.gather(specs)
        assert found == ops
        assert forwards == [op.forward for op in ops]
        assert [id(model) for model in models] == [id(a), id(b), id(c)]
        assert gradient_indices == [1, 3]

    def test_gather_returns_new_lists(self, kernel: Kernel) -> None:
        specs = specs_of(kernel, kernel.KeyTable(), [Trained(["a"])])
        for found in kernel.gather(specs):
            found.clear()
        assert kernel.gather(specs)[2] == ["a"]


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


class TestSameItems:
    def test_the_same_objects_in_the_same_order(self, kernel: Kernel) -> None:
        x, y = [1], [1]
        assert kernel.same_items([], ())
        assert kernel.same_items([x, y], (x, y))
        assert not kernel.same_items([x, y], (y, x))
        assert not kernel.same_items([x], (y,))  # equal, but another object
        assert not kernel.same_items([x], (x, y))
        assert not kernel.same_items([x, y], (x,))


class TestResolve:
    def test_a_chain(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y"), Op(["y", "label"], "loss")])
        assert keys_of(resolution) == ({"x", "label"}, {"x", "label"}, {"y", "loss"})

    def test_no_ops(self, kernel: Kernel) -> None:
        assert keys_of(resolve(kernel)) == (set(), set(), set())

    def test_a_key_read_before_it_is_overwritten(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "x"), Op("x", "y")])
        assert keys_of(resolution) == ({"x"}, {"x"}, {"x", "y"})

    def test_a_key_written_before_it_is_read(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op(None, "x"), Op("x", "y")])
        assert keys_of(resolution) == (set(), set(), {"x", "y"})

    @pytest.mark.parametrize("desired", [None, [], set(), ()])
    def test_nothing_desired_means_all_outputs(self, kernel: Kernel, desired: Any) -> None:
        resolution = resolve(kernel, [Op("x", "y"), Op("y", "z")], desired=desired)
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y", "z"})

    @pytest.mark.parametrize("collection", [set, list, tuple, frozenset, dict.fromkeys])
    def test_desired_keys(self, kernel: Kernel, collection: Any) -> None:
        desired = collection(["z", "x", "unknown"])
        resolution = resolve(kernel, [Op("x", "y"), Op("y", "z")], desired=desired)
        # No op writes x or unknown.
        assert keys_of(resolution) == ({"x"}, {"x"}, {"z"})

    def test_only_unknown_keys_desired(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y")], desired={"unknown"})
        assert keys_of(resolution) == ({"x"}, {"x"}, set())

    def test_desired_keys_are_not_added_to_the_table(self, kernel: Kernel) -> None:
        table = kernel.KeyTable()
        specs = specs_of(kernel, table, [Op("x", "y")])
        for number in range(100):
            kernel.resolve(table, specs, [], [], {f"unknown{number}", "y"})
        assert len(table) == 2

    def test_postprocessing_reads_from_the_batch_but_not_on_the_device(
        self, kernel: Kernel
    ) -> None:
        resolution = resolve(kernel, [Op("x", "y")], [Op(["y", "label"], "score")])
        assert keys_of(resolution) == ({"x", "label"}, {"x"}, {"y", "score"})

    def test_keys_that_postprocessing_reads_are_returned(self, kernel: Kernel) -> None:
        ops = [Op("x", "y"), Op("y", "z")]
        resolution = resolve(kernel, ops, [Op("y", "score")], desired={"z"})
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y", "z"})

    def test_keys_of_the_batch_that_postprocessing_reads_are_returned(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y")], [Op("x", "w")], desired={"y"})
        assert keys_of(resolution) == ({"x"}, {"x"}, {"x", "y"})

    def test_keys_that_only_postprocessing_uses_are_not_returned(self, kernel: Kernel) -> None:
        pops = [Op("y", "p"), Op("p", "q")]
        resolution = resolve(kernel, [Op("x", "y")], pops, desired={"q"})
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y", "q"})

    def test_postprocessing_that_reads_and_then_overwrites(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y")], [Op("y", "y"), Op("y", "z")], desired={"z"})
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y", "z"})

    def test_a_deleted_key_is_no_output(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", ["y", "z"]), Delete("y")])
        assert keys_of(resolution) == ({"x"}, {"x"}, {"z"})

    def test_a_deleted_key_that_is_written_again(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y"), Delete("y"), Op("x", "y")])
        assert keys_of(resolution) == ({"x"}, {"x"}, {"y"})

    def test_deleting_a_key_of_the_batch_reads_it(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Delete(["x", "w"]), Op(None, "y")])
        assert keys_of(resolution) == ({"x", "w"}, {"x", "w"}, {"y"})

    def test_a_key_read_after_it_was_deleted_comes_from_the_batch(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op(None, "y"), Delete("y"), Op("y", "z")])
        assert keys_of(resolution) == ({"y"}, {"y"}, {"z"})

    def test_postprocessing_that_deletes(self, kernel: Kernel) -> None:
        pops = [Op("y", "p"), Delete("p"), Delete("y")]
        resolution = resolve(kernel, [Op("x", ["y", "z"])], pops)
        assert keys_of(resolution) == ({"x"}, {"x"}, {"z"})
        resolution = resolve(kernel, [Op("x", ["y", "z"])], [*pops, Op("p", "q")], desired={"z"})
        assert keys_of(resolution) == ({"x", "p"}, {"x"}, {"y", "z", "p"})

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
        assert resolve(kernel, [Op("x", "y")]).returned.names() == {"y"}

    def test_returned_defaults_to_the_outputs(self, kernel: Kernel) -> None:
        keys = [kernel.KeySet(kernel.KeyTable(), [key]) for key in "abc"]
        assert kernel.Resolution(*keys).returned is keys[2]

    def test_sliced_keys_are_needed_from_the_batch(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x", "w"], ["y"])]
        resolution = resolve(kernel, [Op("x", "y")], slicers=slicers)
        assert keys_of(resolution) == ({"x", "w"}, {"x"}, {"y"})

    def test_unsliced_keys_that_no_op_makes_are_needed_from_the_batch(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], ["y", "w"])]
        resolution = resolve(kernel, [Op("x", "y")], slicers=slicers)
        assert keys_of(resolution) == ({"x", "w"}, {"x"}, {"y"})

    def test_an_unsliced_key_that_only_postprocessing_makes_is_needed(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], ["y", "p"])]
        resolution = resolve(kernel, [Op("x", "y")], [Op("y", "p")], slicers)
        assert keys_of(resolution) == ({"x", "p"}, {"x"}, {"y", "p"})

    def test_several_slicers(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], []), Slicer([], ["y"]), Slicer(["w"], ["z"])]
        resolution = resolve(kernel, [Op(["x", "w"], ["y", "z"])], slicers=slicers)
        assert keys_of(resolution) == ({"x", "w"}, {"x", "w"}, {"y", "z"})

    def test_many_keys(self, kernel: Kernel) -> None:
        ops = [Op(key, follower) for key, follower in itertools.pairwise(MANY)]
        assert keys_of(resolve(kernel, ops)) == ({MANY[0]}, {MANY[0]}, set(MANY[1:]))
        desired = resolve(kernel, ops, desired={MANY[-1], MANY[64]})
        assert desired.outputs.names() == {MANY[-1], MANY[64]}


class TestSlicedButNotUnsliced:
    def test_an_output(self, kernel: Kernel) -> None:
        with pytest.raises(ValueError, match="un-slices") as caught:
            resolve(
                kernel,
                [Op("x", ["y", "z"])],
                slicers=[Slicer(["x"], ["y"])],
                context="mode 'train', epoch 3, ds_id 'a'",
            )
        assert "The keys ['z'] are" in str(caught.value)
        assert "(mode 'train', epoch 3, ds_id 'a')" in str(caught.value)

    def test_all_of_them_are_named(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], [])]
        with pytest.raises(ValueError, match="un-slices") as caught:
            resolve(kernel, [Op("x", ["z", "b", "y"])], slicers=slicers, desired={"z", "b"})
        assert "The keys ['b', 'z'] are" in str(caught.value)

    def test_a_sliced_key_that_postprocessing_reads(self, kernel: Kernel) -> None:
        with pytest.raises(ValueError, match="un-slices") as caught:
            resolve(kernel, [Op("x", "y")], [Op("x", "p")], [Slicer(["x"], ["y"])], {"y"})
        assert "The keys ['x'] are" in str(caught.value)

    def test_keys_that_postprocessing_writes(self, kernel: Kernel) -> None:
        # FastEstimator refuses these.
        slicers = [Slicer(["x"], ["y"])]
        resolution = resolve(kernel, [Op("x", "y")], [Op("y", "p")], slicers)
        assert resolution.outputs.names() == {"y", "p"}
        resolution = resolve(kernel, [Op("x", ["y", "z"])], [Op("y", "z")], slicers)
        assert resolution.outputs.names() == {"y", "z"}
        resolution = resolve(kernel, [Op("x", "y")], [Op("y", "p"), Op("p", "x")], slicers)
        assert resolution.outputs.names() == {"y", "p", "x"}

    @pytest.mark.parametrize(
        "pops",
        [
            [Op("z", "z")],
            [Op("z", "p"), Op("y", "z")],
            [Op("z", "p"), Delete("z")],  # p would be made of the first piece alone
        ],
    )
    def test_keys_that_postprocessing_reads_before_it_writes_them(
        self, kernel: Kernel, pops: list[Op]
    ) -> None:
        with pytest.raises(ValueError, match="un-slices") as caught:
            resolve(kernel, [Op("x", ["y", "z"])], pops, [Slicer(["x"], ["y"])])
        assert "The keys ['z'] are" in str(caught.value)

    @pytest.mark.parametrize("desired", [None, {"y"}, {"y", "p"}])
    def test_keys_that_postprocessing_only_deletes(
        self, kernel: Kernel, desired: set[str] | None
    ) -> None:
        pops = [Delete(["z", "x"]), Op("y", "p")]
        slicers = [Slicer(["x"], ["y"])]
        resolution = resolve(kernel, [Op("x", ["y", "z"])], pops, slicers, desired)
        assert {"y"} <= resolution.outputs.names()

    def test_a_key_that_is_not_returned(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], ["y"])]
        resolution = resolve(kernel, [Op("x", ["y", "z"])], slicers=slicers, desired={"y"})
        assert resolution.outputs.names() == {"y"}

    def test_slicers_without_keys(self, kernel: Kernel) -> None:
        resolution = resolve(kernel, [Op("x", "y")], slicers=[Slicer([], [])])
        assert resolution.outputs.names() == {"y"}

    def test_other_keys_that_postprocessing_reads(self, kernel: Kernel) -> None:
        slicers = [Slicer(["x"], ["y"])]
        resolution = resolve(kernel, [Op("x", "y")], [Op("w", "y")], slicers, {"y"})
        assert resolution.outputs.names() == {"y", "w"}


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
            lambda: kernel.Plan(table, [None], [print], kernel.resolve(table, [], [], [])),
        ):
            with pytest.raises(TypeError):
                call()

    def test_specs_of_the_wrong_class(self, kernel: Kernel) -> None:
        if not kernel.compiled:
            pytest.skip("the reference checks no classes")
        table = kernel.KeyTable()
        slicer = kernel.SlicerSpec(Slicer(["x"]), table)
        with pytest.raises(TypeError):
            kernel.resolve(table, [slicer], [], [])
        with pytest.raises(TypeError):
            kernel.resolve(table, [], [], [kernel.OpSpec(Op("x"), table)])


@pytest.mark.skipif(sys.implementation.name != "cpython", reason="counts references")
def test_no_reference_is_leaked(kernel: Kernel) -> None:
    item, key = Op("x", "y"), "a key of its own"
    slicer = Slicer([key], ["y", "x"])

    def work(times: int) -> None:
        for _ in range(times):
            table = kernel.KeyTable()
            specs = [kernel.OpSpec(item, table), kernel.OpSpec(Op(MANY, "y"), table)]
            slicers = [kernel.SlicerSpec(slicer, table)]
            chosen = kernel.select(specs, "train", "")
            resolution = kernel.resolve(table, chosen, specs, slicers, {"y", "unknown"})
            resolution.inputs.names()
            with pytest.raises(ValueError, match="un-slices"):
                kernel.resolve(table, [kernel.OpSpec(Op("x", key + "2"), table)], [], slicers)

    work(3)
    gc.collect()
    before = sys.getrefcount(item), sys.getrefcount(slicer), sys.getrefcount(key)
    objects = len(gc.get_objects())
    work(50)
    gc.collect()
    assert (sys.getrefcount(item), sys.getrefcount(slicer), sys.getrefcount(key)) == before
    assert len(gc.get_objects()) - objects < 20
