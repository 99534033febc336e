"""The number of processes in the environment of a launcher."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastnet.util.launchers import tf_workers, torch_processes


@pytest.mark.parametrize(
    ("value", "count"), [(None, 1), ("", 1), ("1", 1), ("4", 4), ("many", 1), ("-2", 1)]
)
def test_torchrun(monkeypatch: pytest.MonkeyPatch, value: str | None, count: int) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if value is not None:
        monkeypatch.setenv("WORLD_SIZE", value)
    assert torch_processes() == count


def cluster(task: str | None = None, **jobs: int) -> str:
    config: dict[str, Any] = {"cluster": {job: ["host:1"] * count for job, count in jobs.items()}}
    if task is not None:
        config["task"] = {"type": task, "index": 0}
    return json.dumps(config)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (None, 1),
        ("", 1),
        (cluster(worker=3), 3),
        (cluster("worker", chief=1, worker=2, evaluator=1), 3),
        (cluster("evaluator", chief=1, worker=2, evaluator=1), 1),
        (cluster("worker"), 1),
        ("{}", 1),
    ],
)
def test_tensorflow(monkeypatch: pytest.MonkeyPatch, value: str | None, count: int) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    assert tf_workers() == count


@pytest.mark.parametrize("value", ["{", "[]", '{"cluster": 3}', '{"cluster": {"worker": 3}}'])
def test_a_malformed_cluster(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TF_CONFIG", value)
    with pytest.raises(ValueError, match=r"TF_CONFIG.*cannot be parsed.*JSON like"):
        tf_workers()
