"""Program sets: finding, adding and discarding programs, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pytest

from fastnet._trace import Signature, TensorAdapter, TensorSpec
from fastnet.network.program_limits import MAX_CHANGES_IN_A_ROW, MAX_COMPILATIONS
from fastnet.network.program_set import ANOTHER_PHASE, ANOTHER_SIGNATURE, Program, ProgramSet
from fastnet.network.trace_records import Records


class Tensor:
    dtype = "float"

    def __init__(self, *shape: int) -> None:
        self.shape = shape


def _nothing(value: Any, tensors: Any = None) -> None:
    return None


ADAPTER = TensorAdapter(
    Tensor, attrgetter("dtype"), attrgetter("shape"), _nothing, _nothing, _nothing
)  # fmt: skip


class Plain(Program):
    """A program for one shape, which is valid until `change` is set."""

    def __init__(self, *shape: int) -> None:
        super().__init__(
            Signature(["x"], ADAPTER, [TensorSpec("float", shape)], {"y": TensorSpec()})
        )
        self.change: str | None = None
        self.is_for_phase = True

    def matches_phase(self) -> bool:
        return self.is_for_phase

    def difference(self) -> str | None:
        return self.change

    def run(self, batch: Mapping[str, Any], tensors: list[Any]) -> dict[str, Any]:
        return self.signature.merge(tensors, batch)


def _set_of(*programs: Plain, max_programs: int = 8) -> ProgramSet[Plain]:
    programs_set: ProgramSet[Plain] = ProgramSet(max_programs, Records("eagerly"))
    for program in programs:
        programs_set.add(program)
    return programs_set


def test_program_of_signature_is_found_and_moves_to_front() -> None:
    first, second = Plain(1), Plain(2)
    programs = _set_of(first, second)
    assert programs.programs == (second, first)
    tensor = Tensor(1)
    assert programs.find({"x": tensor}) == (first, [tensor], None)
    assert programs.programs == (first, second)
    assert first.run({"x": tensor}, [tensor]) == {"x": tensor, "y": tensor}


def test_general_program_comes_after_others() -> None:
    general, exact, other = Plain(1), Plain(1), Plain(2)
    general.has_dynamic_axes = True
    programs = _set_of(exact, other, general)
    assert programs.programs == (other, exact, general)
    assert programs.find({"x": Tensor(1)})[0] is exact
    exact.change = "something"
    assert programs.find({"x": Tensor(1)})[0] is general
    assert programs.programs == (exact, other, general)


def test_reason_is_what_has_changed_of_program_that_matches() -> None:
    first, second = Plain(1), Plain(2)
    programs = _set_of(first, second)
    assert programs.find({"x": Tensor(3)}) == (None, [], ANOTHER_SIGNATURE)
    second.change = "op.factor has changed"
    assert programs.find({"x": Tensor(2)}) == (None, [], "op.factor has changed")
    first.change = "something else"
    assert programs.find({"x": Tensor(1)}) == (None, [], "something else")
    assert _set_of().find({"x": Tensor(1)}) == (None, [], None)


def test_change_precedes_signature_which_precedes_phase() -> None:
    batch = {"x": Tensor(1)}
    for change_first in (False, True):
        other_phase, other_signature, changed = Plain(1), Plain(2), Plain(1)
        other_phase.is_for_phase = False
        changed.change = "op.factor has changed"
        assert _set_of(other_phase).find(batch)[2] == ANOTHER_PHASE
        programs = [other_signature, other_phase]
        assert _set_of(*programs).find(batch)[2] == ANOTHER_SIGNATURE
        assert _set_of(*reversed(programs)).find(batch)[2] == ANOTHER_SIGNATURE
        programs.insert(0 if change_first else 2, changed)
        assert _set_of(*programs).find(batch)[2] == changed.change


def test_missing_key_raises() -> None:
    with pytest.raises(KeyError, match=r"^'x'$"):
        _set_of(Plain(1)).find({})


def test_more_programs_than_allowed_are_refused() -> None:
    programs = _set_of(Plain(1), Plain(2), max_programs=2)
    expected = f"there are more than 2 input signatures, most recently because {ANOTHER_SIGNATURE}"
    assert programs.make_room_or_refuse(ANOTHER_SIGNATURE, is_change=False) == expected
    assert programs.make_room_or_refuse(ANOTHER_SIGNATURE, is_change=False, phases=2) is None
    # An unusable program makes room, the least recently used first.
    for program in programs.programs:
        program.change = "changed"
    (kept, _) = programs.programs
    assert programs.make_room_or_refuse(ANOTHER_SIGNATURE, is_change=False) is None
    assert programs.programs == (kept,)


def test_changes_in_each_step_are_refused() -> None:
    programs = _set_of(Plain(1), max_programs=20)
    for _ in range(MAX_CHANGES_IN_A_ROW):
        assert programs.make_room_or_refuse("changed", is_change=True) is None
        programs.add(Plain(1), is_change=True)
    programs.find({"x": Tensor(1)})  # A step that a program runs begins the count again.
    for _ in range(MAX_CHANGES_IN_A_ROW):
        assert programs.make_room_or_refuse("changed", is_change=True) is None
        programs.add(Plain(1), is_change=True)
    assert programs.make_room_or_refuse("b", is_change=False) is None
    assert programs.make_room_or_refuse("a", is_change=True) == "something changes in each step: a"
    assert programs.programs == ()


def test_changes_without_another_program_do_not_count() -> None:
    programs = _set_of(Plain(1))
    for _ in range(MAX_CHANGES_IN_A_ROW + 1):
        assert programs.make_room_or_refuse("changed", is_change=True) is None


def test_number_of_compilations_is_limited() -> None:
    programs = _set_of()
    for _ in range(MAX_COMPILATIONS):
        program = Plain(1)
        programs.add(program)
        programs.discard(program)
    reason = str(programs.make_room_or_refuse("", is_change=False))
    assert f"{MAX_COMPILATIONS} programs have been compiled for these ops" in reason


def test_graphs_that_are_not_compiled_do_not_count() -> None:
    graphs = [Plain(1), Plain(2), Plain(3)]
    for graph in graphs:
        graph.is_compiled = False
    programs = _set_of(*graphs, max_programs=1)
    assert programs.count == 3
    assert programs.make_room_or_refuse(ANOTHER_SIGNATURE, is_change=False) is None
    programs.add(Plain(4))
    assert programs.make_room_or_refuse(ANOTHER_SIGNATURE, is_change=False) is not None


def test_first_reason_not_to_compile_stays() -> None:
    programs = _set_of()
    programs.stop_compiling(None)
    assert programs.fallback_reason is None
    for reason in ("first", None, "second"):
        programs.stop_compiling(reason)
    assert programs.fallback_reason == "first"
