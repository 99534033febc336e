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


def test_scans_are_shrunk_alike(overhead: Any) -> None:
    scan = np.random.default_rng(0).integers(0, 256, (3, 1, 128, 128), dtype="uint8")
    expected = scan.reshape(3, 1, 8, 16, 8, 16).mean(axis=(3, 5)) / 255
    batch = torch.as_tensor(scan)
    floats = overhead.ToFloat("scan", "scan").forward(batch, {})
    for shrunk in (
        overhead.Shrink("scan", "image").forward(floats, {}),
        overhead.ShrinkBytes("scan", "image").forward(batch, {}),
    ):
        assert shrunk.dtype is torch.float32
        np.testing.assert_allclose(shrunk, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["ShiftEach", "ShiftAll"])
def test_each_image_is_shifted_by_itself(overhead: Any, name: str) -> None:
    image = np.random.default_rng(0).random((200, 1, 8, 8), dtype="float32")
    shifted = np.asarray(getattr(overhead, name)("image", "image").forward(torch.tensor(image), {}))
    found = []
    for before, after in zip(image[:, 0], shifted[:, 0], strict=True):
        (distance,) = [
            (down, right)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if np.array_equal(np.roll(before, (down, right), axis=(0, 1)), after)
        ]
        found.append(distance)
    assert len(set(found)) == 9


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
