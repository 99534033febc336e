"""The files that a batch passes through, from entering to leaving a network."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import fastnet
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.loss import CrossEntropy
from fastnet.op.tensorop.model import ModelOp, UpdateOp

PACKAGE = Path(fastnet.__file__).parent
# Compiled modules show no frames, so those on the path are listed here: `Plan` and `BoundPlan`,
# `Snapshot`, `same_items` and `same_entries`, which compare op lists and training flags, and
# `NestMap`.
KERNEL = {"_execute", "_guards", "_nest", "_resolve"}
MOST_FILES = 14
MOST_COMPILED_FILES = 30
MOST_STATIC_FILES = 20


def files_entered(use: Any) -> set[str]:
    """Return the Python files of fastnet that a function enters."""
    found: set[str] = set()

    def trace(frame: FrameType, event: str, value: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.add(path.relative_to(PACKAGE).as_posix())

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        use()
    finally:
        sys.settrace(before)
    return found


@pytest.mark.parametrize(
    ("compile", "most"),
    [(False, MOST_FILES), (fastnet.CompileOptions(backend="eager"), MOST_COMPILED_FILES)],
    ids=["eager", "compiled"],
)
def test_a_training_step_in_torch(compile: Any, most: int) -> None:
    model = fastnet.build(lambda: torch.nn.Linear(64, 10), optimizer_fn="adam")
    network = training_network(model, compile)
    batch = {"image": torch.randn(32, 64), "label": torch.randint(10, (32,))}

    def use() -> None:
        with network("train", epoch=1):
            for _ in range(2 if compile else 1):
                network.run_step(batch)

    check(network, use, {*KERNEL, "_trace"} if compile else KERNEL, most)


@pytest.mark.tf
@pytest.mark.parametrize("compile", [False, True])
def test_a_static_training_step_in_tensorflow(compile: bool) -> None:
    tf = pytest.importorskip("tensorflow")
    layers = tf.keras.layers
    model = fastnet.build(
        lambda: tf.keras.Sequential([tf.keras.Input((64,)), layers.Dense(10)]), optimizer_fn="adam"
    )
    network = training_network(model, compile)
    batch = {"image": tf.zeros((32, 64)), "label": tf.zeros((32,), tf.int32)}

    def use() -> None:
        with network("train", epoch=1):
            network.run_step(batch)

    check(network, use, {*KERNEL, "_trace"}, MOST_STATIC_FILES)


def test_the_first_entry_calls_no_function_for_each_op() -> None:
    """Python calls of an op each would make the first entry of 1,000 ops several times as slow."""

    def count(length: int) -> int:
        model = fastnet.build(lambda: torch.nn.Linear(2, 1), optimizer_fn="sgd")
        between = [LambdaOp(abs, f"key{at}", f"key{at + 1}") for at in range(length)]
        ops = [ModelOp(model, "x", "key0"), *between, UpdateOp(model, f"key{length}")]
        network = fastnet.Network(ops)
        calls: Counter[str] = Counter()

        def trace(frame: FrameType, event: str, value: Any) -> None:
            calls[event] += 1

        before = sys.getprofile()
        sys.setprofile(trace)
        try:
            with network("train", 1, desired_output_keys=["key1"]):
                pass
        finally:
            sys.setprofile(before)
        return calls["call"]

    count(1)  # Fills caches.
    assert abs(count(210) - count(10)) < 20


def training_network(model: Any, compile: Any) -> Any:
    return fastnet.Network(
        [
            ModelOp(model, inputs="image", outputs="scores"),
            CrossEntropy(["scores", "label"], outputs="loss", from_logits=True),
            UpdateOp(model, loss_name="loss"),
        ],
        compile=compile,
    )


def check(network: Any, use: Callable[[], None], kernel: set[str], most: int) -> None:
    """Compare the number of files with its limit, once all programs are compiled."""
    use()
    use()
    python = files_entered(use)
    print("\n".join(sorted(python | {f"{name}.pyx" for name in kernel})))
    assert not any(trace.fallback for trace in network.traces)
    assert all((PACKAGE / f"{name}.pyx").exists() for name in kernel)
    assert len(python) + len(kernel) <= most


def test_no_file_is_longer_than_500_lines() -> None:
    files = [*(PACKAGE / "network").glob("*.py"), *PACKAGE.glob("*.py")]
    lengths = {file.name: len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
