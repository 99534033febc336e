"""The collectives of steps, and what a run of a step receives that does not communicate."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from fastnet.backend.torch.collectives import Messages, average_over, broadcast_from_first
from tests.ranks import ranks


def exchange() -> dict[str, Any]:
    """Exchange numbers, and repeat that alone on each rank in turn, with others."""
    rank, group = dist.get_rank(), dist.group.WORLD
    own = torch.tensor([1.0, float("inf"), 2.0]) + 10 * rank
    buffers = [torch.full((2,), float(rank)), torch.tensor(rank)]
    messages = Messages()
    with messages.recorded():
        results = [average_over(own, [group]), *broadcast_from_first(buffers, group)]
        expected = [result.clone() for result in results]
        for result in results:
            result.zero_()
    repeated = {}
    for name, change in (("same", 0.0), ("others", 4.0)):
        with messages.repeated():
            repeated[name] = [
                average_over(own + change, [group]),
                *broadcast_from_first([one + int(change) for one in buffers], group),
            ]
        repeated[f"sent by {name}"] = list(messages.sent)
    with messages.repeated(), pytest.raises(RuntimeError, match="sends other messages"):
        average_over(own[:2], [group])
    return {"expected": expected, "own": own, **repeated}


def test_repeated_messages() -> None:
    for rank, found in enumerate(ranks(2)(exchange)):
        average, *buffers = found["expected"]
        assert average.tolist() == [6.0, float("inf"), 7.0]
        assert [one.tolist() for one in buffers] == [[0.0, 0.0], 0]
        for one, other in zip(found["same"], found["expected"], strict=True):
            assert torch.equal(one, other)
        # The other rank sends what it sent before.
        assert found["others"][0].tolist() == [8.0, float("inf"), 9.0]
        of_rank_0 = [[4.0, 4.0], 4] if rank == 0 else [[0.0, 0.0], 0]
        assert [one.tolist() for one in found["others"][1:]] == of_rank_0
        assert torch.equal(found["sent by same"][0], found["own"])
        assert torch.equal(found["sent by others"][0], found["own"] + 4)
