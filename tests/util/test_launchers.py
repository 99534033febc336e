"""What the environment tells of several processes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fastnet.util.launchers import tf_workers, torch_processes


@pytest.mark.parametrize(
    ("told", "count"), [(None, 1), ("", 1), ("1", 1), ("4", 4), ("many", 1), ("-2", 1)]
)
def test_processes_of_torchrun(
    monkeypatch: pytest.MonkeyPatch, told: str | None, count: int
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if told is not None:
        monkeypatch.setenv("WORLD_SIZE", told)
    assert torch_processes() == count


def cluster(task: str | None = None, **jobs: int) -> str:
    config: dict[str, Any] = {"cluster": {job: ["host:1"] * count for job, count in jobs.items()}}
    if task is not None:
        config["task"] = {"type": task, "index": 0}
    return json.dumps(config)


@pytest.mark.parametrize(
    ("told", "count"),
    [
        (None, 1),
        ("", 1),
        (cluster(worker=3), 3),
        (cluster("chief", chief=1, worker=2), 3),
        (cluster("worker", chief=1, worker=2, evaluator=1), 3),
        (cluster("evaluator", chief=1, worker=2, evaluator=1), 1),
        (cluster("worker"), 1),
        ("{}", 1),
    ],
)
def test_workers_of_tensorflow(
    monkeypatch: pytest.MonkeyPatch, told: str | None, count: int
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if told is not None:
        monkeypatch.setenv("TF_CONFIG", told)
    assert tf_workers() == count


@pytest.mark.parametrize("told", ["{", "[]", '{"cluster": 3}', '{"cluster": {"worker": 3}}'])
def test_a_cluster_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("TF_CONFIG", told)
    with pytest.raises(ValueError, match=r"^TF_CONFIG is in the environment, but cannot be read"):
        tf_workers()
