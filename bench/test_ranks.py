"""Peers that train on two ranks: their weights and collectives are those of the loop by hand."""

from __future__ import annotations

import pytest

pytest.importorskip("torch.distributed")

from bench import ranks
from bench.rank_process import BY_HAND, FASTNET, MAKERS
from bench.timing import Spread


@pytest.mark.parametrize("engine", list(MAKERS))
@pytest.mark.parametrize("workload", ranks.WORKLOADS)
def test_peers_agree(workload: str, engine: str) -> None:
    lines = ranks.measure(workload, engine, 2, rounds=2, loops=1)
    assert [line.peer for line in lines][:2] == [BY_HAND, FASTNET]
    assert ranks.disagreements(lines) == []
    assert all(line.collectives and line.microseconds > 0 for line in lines)


def test_what_differs_is_told() -> None:
    spread = Spread(1.0, 1.0, 1.0)
    hand = ranks.Line(
        "mlp_train", "ddp", 2, BY_HAND, 9.0, spread, 5.0, spread, {"all_reduce": 1}, 0.0
    )
    other = ranks.Line(
        "mlp_train", "ddp", 2, FASTNET, 9.0, spread, 5.0, spread, {"all_reduce": 2}, 0.5
    )
    assert ranks.disagreements([hand]) == []
    calls, weights = ranks.disagreements([hand, other])
    assert "{'all_reduce': 2} where it is {'all_reduce': 1} by hand." in calls
    assert weights.endswith("weights are 5.0e-01 from those by hand.")
    assert calls in ranks.table([hand, other])


def test_a_rank_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        ranks.measure("nowhere", "ddp", 1, rounds=1, loops=1)
