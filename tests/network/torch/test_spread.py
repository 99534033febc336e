"""Programs in two and three processes, beside a loop by hand under the engine and one process."""

from __future__ import annotations

import pytest
import torch

from tests.network.torch import spread_programs
from tests.ranks import ranks

PROGRAMS = [
    cls
    for cls in vars(spread_programs).values()
    if isinstance(cls, type) and issubclass(cls, spread_programs.Program)
]
CASES = [
    pytest.param(
        cls,
        engine,
        world,
        id=f"{cls.__name__}-{engine}-{world}",
        marks=[pytest.mark.slow] if world > 2 else [],
    )
    for world in (2, 3)
    for cls in PROGRAMS
    for engine in cls.engines
]

State = list[dict[str, torch.Tensor]]


def distance(one: State, other: State, but: str = " ") -> float:
    """Return the largest difference between weights by the same names."""
    assert [list(each) for each in one] == [list(each) for each in other]
    return max(
        float((mine[name].double() - theirs[name].double()).abs().max())
        for mine, theirs in zip(one, other, strict=True)
        for name in mine
        if but not in name
    )


@pytest.mark.parametrize(("program", "engine", "world"), CASES)
def test_is_like_the_loop_by_hand_and_like_one_process(
    program: type[spread_programs.Program], engine: str, world: int
) -> None:
    results = ranks(world)(spread_programs.compare, program.__name__, engine)
    first = results[0]
    for result in results:
        own = result["fastnet"]
        # each rank's statistics are of its own batches, until the first one's are handed out
        assert distance(own, first["fastnet"], but="running") == 0.0
        if program.has_loop:
            exact = program.exact and world == 2
            assert distance(own, result["by hand"]) <= (0.0 if exact else 1e-6)
    if program.has_one:
        assert distance(first["fastnet"], first["in one"]) <= 1e-6
    moved = distance(first["fastnet"], spread_programs.whole(program().make()), but="running")
    assert moved > 1e-3
