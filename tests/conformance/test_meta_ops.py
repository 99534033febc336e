"""Ops that run other ops, alone and inside of each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fastnet.op.tensorop import LambdaOp, TensorOp
from fastnet.op.tensorop.gradient import GradientOp, Watch
from fastnet.op.tensorop.meta import Fuse, OneOf, Repeat, Sometimes
from fastnet.schedule import EpochScheduler
from tests.conformance.agreement import assert_same, conforms
from tests.conformance.failures import check_failing_step, notes_of
from tests.conformance.frameworks import Framework, tf

X = np.arange(6, dtype="float32").reshape(2, 3)
W = np.full((3, 2), 0.5, dtype="float32")


@pytest.fixture(autouse=True)
def seeds() -> None:
    if tf:
        tf.random.set_seed(3)
    torch.manual_seed(3)
    np.random.seed(3)


def add(value: float, key: str = "x", out: str | None = None, **rest: Any) -> LambdaOp:
    return LambdaOp(lambda x: x + value, key, out or key, **rest)


def draws(fw: Framework, ops: list[Any], key: str = "x", count: int = 150) -> list[float]:
    """Note what a scalar zero becomes, step after step."""
    batch = {"x": np.zeros((), "float32"), "y": np.full((), -1, "float32")}
    return [float(result[key]) for result in fw.steps(fw.network(ops), [batch] * count)]


@pytest.mark.fast
class TestFuse:
    @conforms
    def test_reads_and_writes_what_its_ops_do(self, fw: Framework) -> Any:
        fused = Fuse(
            [
                add(1, "x", "y"),
                LambdaOp(lambda y, w: [y @ w, y * 2], ["y", "w"], ["z", "y"]),
                TensorOp("y", "copy"),
            ]
        )
        result = fw.step(fw.network([fused, add(1, "z")]), {"x": X, "w": W, "other": "kept"})
        assert_same(
            result,
            {
                "x": X,
                "w": W,
                "other": "kept",
                "y": (X + 1) * 2,
                "z": (X + 1) @ W + 1,
                "copy": (X + 1) * 2,
            },
        )
        return result

    @conforms
    def test_in_modes_of_its_ops_and_in_a_schedule(self, fw: Framework) -> Any:
        early = Fuse([add(1, mode="train"), add(2, mode="train")])
        late = Fuse(add(10, mode="train"))
        network = fw.network([EpochScheduler({1: early, 2: late, 3: None})])
        results = [
            fw.step(network, {"x": X}, mode, epoch)
            for mode in ("train", "eval")
            for epoch in (1, 2, 3)
        ]
        assert [float(one["x"][0, 0]) for one in results] == [3, 10, 0, 0, 0, 0]
        return results


class TestRepeat:
    @pytest.mark.parametrize(("limit", "most"), [(20, None), (20, 2), (20, 1), (-5, None)])
    @conforms
    def test_while_a_condition_holds(self, fw: Framework, limit: int, most: int | None) -> Any:
        mean = fw.mean
        network = fw.network([Repeat(add(3), lambda x: mean(x) < limit, max_iter=most)])
        batches = [{"x": X * factor} for factor in (1, -2, 50)]
        results = fw.steps(network, batches)
        for result, batch in zip(results, batches, strict=True):
            expected, count = batch["x"] + 3, 1
            while expected.mean() < limit and count != most:
                expected, count = expected + 3, count + 1
            assert_same(result["x"], expected)
        return results


class TestChoices:
    @pytest.mark.parametrize("prob", [0.2, 0.7])
    def test_sometimes_as_often_as_it_says(self, fw: Framework, prob: float) -> None:
        seen = draws(fw, [Sometimes(add(1), prob)])
        assert set(seen) == {0, 1}
        assert abs(np.mean(seen) - prob) < 0.1
        # drawn anew in each step: neither the same nor in turns
        assert abs(np.corrcoef(seen[1:], seen[:-1])[0, 1]) < 0.25

    @pytest.mark.parametrize("probs", [None, [0.6, 0.1, 0.3], [0.0, 1.0, 0.0]])
    def test_one_of_as_often_as_it_says(self, fw: Framework, probs: list[float] | None) -> None:
        ops = [add(value, "x", "y") for value in (10, 20, 30)]
        seen = draws(fw, [OneOf(*ops, probs=probs)], "y")
        for value, expected in zip((10, 20, 30), probs or [1 / 3] * 3, strict=True):
            assert abs(seen.count(value) / len(seen) - expected) < 0.1
        assert set(seen) <= {10, 20, 30}

    def test_the_framework_s_seed_repeats_them(self, fw: Framework) -> None:
        runs = []
        for seed in (1, 1, 2):
            if tf:
                tf.random.set_seed(seed)
            torch.manual_seed(seed)
            np.random.seed(seed)
            ops = [Sometimes(add(1)), OneOf(add(10), add(20), add(30))]
            runs.append(draws(fw, ops, count=30))
        assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    ("around", "times"),
    [
        (lambda op: Fuse([OneOf(op, op), op]), 2),
        (lambda op: OneOf(Fuse([op, op]), Fuse([op, op])), 2),
        (lambda op: Repeat(Sometimes(op, 1.0), 3), 3),
        (lambda op: Sometimes(op, 0.0), 0),
    ],
    ids=["OneOf in Fuse", "Fuse in OneOf", "Sometimes in Repeat", "never"],
)
def test_an_op_with_a_condition_on_values_inside(fw: Framework, around: Any, times: int) -> None:
    def shift(y: Any) -> Any:
        if fw.mean(y) > 1:
            y = y / 2
        else:
            y = y * 4
        return y

    network = fw.network(
        [
            Watch("x"),
            LambdaOp(lambda x: x * 1, "x", "y"),
            around(LambdaOp(shift, "y", "y")),
            GradientOp("y", "slope", inputs="x"),
        ]
    )
    batches = [{"x": X * factor} for factor in (1, -2, np.float32(0.125))]
    for result, batch in zip(fw.steps(network, batches), batches, strict=True):
        slope = 1.0
        for _ in range(times):
            slope *= 0.5 if (batch["x"] * slope).mean() > 1 else 4
        assert_same(result["y"], batch["x"] * np.float32(slope))
        assert_same(result["slope"], np.full_like(X, slope))


@pytest.mark.parametrize("wrap", ["fuse", "sometimes", "one_of", "repeat", "nested"])
def test_an_op_inside_that_raises_is_named(fw: Framework, wrap: str) -> None:
    def check(x: Any, ok: str) -> Any:
        if ok != "yes":
            raise RuntimeError(f"not {ok}")
        return x + 1

    op = LambdaOp(check, ["x", "ok"], "x")
    inside = "Raised by the inner op {} (op {}, inputs ['x', 'ok'], outputs ['x'])."
    outer, notes = {
        "fuse": (Fuse([add(0), op]), [inside.format("LambdaOp", 1)]),
        "sometimes": (Sometimes(op, 1.0), [inside.format("LambdaOp", 0)]),
        "one_of": (OneOf(op, op), [inside.format("LambdaOp", "?")]),
        "repeat": (Repeat(op, 1), [inside.format("LambdaOp", 0)]),
        "nested": (
            Fuse([add(0), Repeat(op, 1)]),
            [inside.format("LambdaOp", 0), inside.format("Repeat", 1)],
        ),
    }[wrap]
    out = "['x']"
    name = type(outer).__name__
    if wrap == "one_of":
        notes = []
    notes.append(f"Raised by {name} (op 0, inputs ['x', 'ok'], outputs {out}).")
    check_failing_step(
        fw,
        fw.network([outer]),
        {"x": X, "ok": "no"},
        {"x": X, "ok": "yes"},
        {"x": X + 1},
        RuntimeError,
        "not no",
        *notes_of(fw, *notes),
    )
