"""Peers that train on two devices of TensorFlow: their weights are those of the loop by hand."""

from __future__ import annotations

import pytest

from bench import devices, machine

pytestmark = pytest.mark.skipif(not machine.has("tf"), reason="needs TensorFlow")


@pytest.mark.parametrize("name", ["MLP 16-32-4, 8 samples", "20 layers of 32, normed, 16 samples"])
def test_peers_agree(name: str) -> None:
    found = devices.in_process(name, rounds=1)
    assert tuple(found) == devices.PEERS
    assert max(one["distance"] for one in found.values()) < 1e-5
    parts = [found[peer]["part"] for peer in devices.PEERS]
    assert parts == [None, None, None, "2 programs" if "normed" in name else None]
    text = devices.table({name: found}).to_markdown()
    assert all(f"| {name} | {peer}" in text for peer in devices.PEERS)


def test_a_process_that_fails_is_told() -> None:
    with pytest.raises(RuntimeError, match="nowhere"):
        devices.in_process("nowhere", rounds=1)
