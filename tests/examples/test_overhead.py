"""The two networks of examples/overhead.py do the same work: only what it costs differs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def overhead(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    threads = torch.get_num_threads()
    yield importlib.import_module("overhead")
    torch.set_num_threads(threads)


def test_both_networks_learn_the_same_from_what_is_not_shifted(
    overhead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "REACH", 0)
    batches = [
        {key: torch.as_tensor(value) for key, value in batch.items()}
        for batch in overhead.batches()
    ]
    assert len(batches) == 1797 // 32
    losses = []
    for network in (overhead.slow(), overhead.fast()):
        with network(mode="train", epoch=1, desired_output_keys={"loss"}):
            losses.append([float(network.run_step(batch)["loss"]) for batch in batches])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-3)
    assert losses[0][-1] < losses[0][0] - 0.3  # in one epoch
