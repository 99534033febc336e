"""Profiles of networks in torch: what is measured, and that measuring changes nothing."""

from __future__ import annotations

import re
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastnet
from fastnet import CompileOptions
from fastnet._execute import KernelPlan
from fastnet._resolve import KeyTable, OpSpec, resolve
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.profiling import Profile, Section
from fastnet.profiling.rows import ROW_KINDS
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.kernel.ops import shown
from tests.network.programs import batches, built, mlp, regression

X = {"x": torch.ones(4, 2)}
NETWORK = Path(fastnet.network.__file__).parent
# The kinds of rows, where they are passed to a meter or named for it.
KINDS_IN_SOURCE = re.compile(
    r"(?:\.row\(|, meter, |context_row = |^ +row = |"
    r"^(?:REST_ROW|_SYNCHRONIZATION|_CONVERSION) = \()"
    r'"(\w+)",',
    re.MULTILINE,
)


def identity(x: Any) -> Any:
    return x


def sleep(x: Any) -> Any:
    time.sleep(200e-6)
    return x


def chain(*functions: Any, **kwargs: Any) -> TorchNetwork:
    keys = ["x", *(f"y{place}" for place in range(len(functions)))]
    ops = [LambdaOp(fn, *io) for fn, *io in zip(functions, keys, keys[1:], strict=False)]
    return TorchNetwork(ops, **kwargs)


def only(profile: Profile) -> Section:
    (section,) = profile.sections
    return section


def names(section: Section, kind: str) -> list[str]:
    return [row.name for row in section.rows if row.kind == kind]


def kinds(section: Section) -> list[str]:
    return list(dict.fromkeys(row.kind for row in section.rows))


class TestRows:
    def test_each_part_of_step_has_row(self) -> None:
        network = TorchNetwork(
            [LambdaOp(identity, "x", "y"), LambdaOp(lambda y, x: [x, y], ["y", "x"], ["a", "b"])]
        )
        section = only(fastnet.profile(network, X, mode="eval", steps=10, skip=2))
        assert (section.name, section.mode, section.eager) == ("eval", "eval", False)
        assert section.steps == 10
        assert names(section, "input") == ["x"]
        assert names(section, "op") == ["LambdaOp[identity](x) -> y", "LambdaOp(y, x) -> a, b"]
        assert sorted(names(section, "output")) == ["a", "b", "y"]
        assert kinds(section) == [
            *("grad_mode", "input", "dispatch", "op", "merge", "output"),
            *("release", "rest", "measuring"),
        ]
        assert all(row.count == 10 for row in section.rows)
        assert [row.index for row in section.rows if row.kind == "op"] == [0, 1]

    @pytest.mark.parametrize("most_stamps", [1, 1 << 14])
    def test_rows_add_up_to_the_step(
        self, most_stamps: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fastnet.profiling.recording._MAX_STAMPS", most_stamps)
        model = built(mlp, "adam")
        network = TorchNetwork(
            regression(model),
            postprocessing=NumpyLambdaOp(identity, "y", "z"),
            slicers=[AxisSlicer(axis=0, slice="x", unslice="y"), MeanUnslicer("loss")],
        )
        section = only(fastnet.profile(network, batches(3), steps=20))
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)
        assert sum(row.mean for row in section.parts) == pytest.approx(section.step.mean)
        assert sum(map(section.share, section.parts)) == pytest.approx(1)
        assert {"slice", "unslice", "deferred", "conversion", "postprocessing"} <= set(
            kinds(section)
        )
        assert names(section, "slice") == ["slice"]
        assert names(section, "unslice") == ["unslice"]

    def test_rows_of_keys_have_bytes(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x, unused: x, ["x", "nest"], "y")])
        nest = {"a": [torch.zeros(1000), "word"], "b": torch.zeros(3, dtype=torch.int8)}
        profile = fastnet.profile(network, {**X, "nest": nest}, mode="infer", steps=3)
        section = only(profile)
        assert "3.9 KiB" in str(profile)
        weights = {row.title: row.bytes for row in section.rows if row.bytes is not None}
        assert weights == {"input x": 32, "input nest": 4003, "output y": 32}

    def test_entering_network_is_entry(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:
            for epoch in (1, 2, 3):
                with network("eval", epoch):
                    network.run_step(X)
            with network("train", 1):
                pass
        counts = {(row.section, row.name): row.count for row in profile.entries}
        assert counts == {
            ("eval", "resolve (computed)"): 1,
            ("eval", "resolve (cached)"): 2,
            ("eval", "open"): 3,
            ("train", "resolve (computed)"): 1,
            ("train", "open"): 1,
        }
        assert all(not row.in_step and row.total > 0 for row in profile.entries)
        assert only(profile).steps == 3
        assert set(profile.entries) <= set(profile.rows)

    def test_modes_and_other_ops_have_separate_sections(self) -> None:
        op = LambdaOp(identity, "x", "y")
        network = TorchNetwork([op, LambdaOp(identity, "y", "z", mode="train")])
        with fastnet.profile(network) as profile:
            for epoch in (1, 2):
                for mode in ("train", "eval"):
                    with network(mode, epoch):
                        network.run_step(X)
            with network("eval", 3, desired_output_keys=["x"]):
                network.run_step(X)
            with network("eval", 3, desired_output_keys=["y"]):
                network.run_step(X)
            with network("train", 4, warmup=True):
                network.run_step(X)
        found = {section.name: (section.mode, section.steps) for section in profile.sections}
        assert found == {
            "train": ("train", 2),
            "eval": ("eval", 2),
            "eval, from epoch 3": ("eval", 1),
            "eval, from epoch 3 (2)": ("eval", 1),
            "train, warming up": ("train", 1),
        }
        assert names(profile.section("train"), "op") == [
            "LambdaOp[identity](x) -> y",
            "LambdaOp[identity](y) -> z",
        ]
        later = "eval, from epoch 3"
        assert {row.section for row in profile.section(later).rows} == {later}
        with pytest.raises(KeyError, match="no section 'test' in this profile; there are: train"):
            profile.section("test")

    def test_delay_of_op_is_measured_within_ten_percent(self) -> None:
        def work(x: Any) -> Any:
            start = time.perf_counter()
            time.sleep(2e-3)
            # On a loaded machine a sleep takes longer.
            delays.append(time.perf_counter() - start)
            return x

        delays: list[float] = []

        section = only(fastnet.profile(chain(identity, work), X, mode="infer", steps=60))
        (row,) = [row for row in section.parts if row.name == "LambdaOp[work](y0) -> y1"]
        # Other programs disturb a part of the steps.
        assert row.p50 == pytest.approx(statistics.median(delays[-60:]), rel=0.1)
        total = sum(row.total for row in section.parts)
        assert total == pytest.approx(section.step.total, rel=0.01)

    @pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
    @pytest.mark.parametrize("ddp", [False, True])
    def test_modules_of_model_have_rows(self, ddp: bool, tmp_path: Path) -> None:
        class Slow(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                time.sleep(2e-3)
                return x

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = torch.nn.Linear(2, 2)
                self.rest = torch.nn.ModuleList([Slow()])
                self.scripted = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(2, 2)))

            def forward(self, x: Any) -> Any:
                return self.rest[0](self.first(self.scripted(x)))

        inner = Model()
        model: torch.nn.Module = inner
        if ddp:
            torch.distributed.init_process_group(
                "gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1
            )
            model = torch.nn.parallel.DistributedDataParallel(inner)
        model = fastnet.build(model, None, model_name="net")
        network = TorchNetwork([ModelOp(model, "x", "y"), ModelOp(model, "y", "z")])
        section = only(fastnet.profile(network, X, mode="infer", steps=7, modules=True))
        if ddp:
            torch.distributed.destroy_process_group()
        modules = {row.name: row for row in section.rows if row.kind == "module"}
        assert {name: row.count for name, row in modules.items()} == {
            "net.first": 14,
            "net.rest.0": 14,
        }
        ops = sum(row.total for row in section.rows if row.kind == "op")
        assert 14 * 2e-3 <= modules["net.rest.0"].total <= ops
        assert modules["net.first"].total < ops - modules["net.rest.0"].total
        assert modules["net.rest.0"].p50 >= 2 * 2e-3  # The time per step, as of all rows.
        assert not any(row.in_step for row in modules.values())
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in inner.modules())

    def test_modules_of_compiled_step_are_refused(self) -> None:
        model = fastnet.build(torch.nn.Sequential(torch.nn.Linear(2, 2)), None, model_name="net")
        network = TorchNetwork([ModelOp(model, "x", "y")], compile=CompileOptions("eager"))
        asked: dict[str, Any] = {"mode": "infer", "steps": 3, "modules": True}
        with pytest.raises(ValueError, match=r"A compiled step .* Pass eager=True to measure"):
            fastnet.profile(network, X, **asked)
        section = only(fastnet.profile(network, X, **asked, eager=True))
        assert names(section, "module") == ["net.0"]


class TestKinds:
    def test_kinds_of_kernel_rows_are_known(self) -> None:
        table, op = KeyTable(), LambdaOp(identity, "x", "y")
        specs = [OpSpec(op, table)]
        plan = KernelPlan(table, specs, [op.forward], resolve(table, specs, [], []))
        emitted = {kind for kind, _ in plan.spans}
        assert {"input", "op", "output", "dispatch"} <= emitted <= set(ROW_KINDS)

    def test_kinds_of_network_rows_are_known(self) -> None:
        sources = [path.read_text() for path in sorted(NETWORK.rglob("*.py"))]
        emitted = {kind for source in sources for kind in KINDS_IN_SOURCE.findall(source)}
        assert {"slice", "wait", "conversion", "autocast", "tape", "trace"} <= emitted
        assert emitted <= set(ROW_KINDS)


class TestBlocks:
    def test_skipped_steps_are_not_measured(self) -> None:
        network = chain(identity)
        with fastnet.profile(network, skip=3) as profile:
            for mode in ("infer", "eval"):
                with network(mode, 1):
                    for _ in range(5):
                        network.run_step(X)
        assert [(one.name, one.steps) for one in profile.sections] == [("infer", 2), ("eval", 5)]


class TestErrors:
    def test_failed_step_leaves_no_row(self) -> None:
        def fail(x: Any) -> Any:
            if x.sum() > 8:
                raise ArithmeticError("too much")
            return x

        network = chain(identity, fail, identity)
        with fastnet.profile(network) as profile, network("infer", 1):
            network.run_step(X)
            with pytest.raises(ArithmeticError, match="too much") as caught:
                network.run_step({"x": torch.full((4, 2), 9.0)})
            with pytest.raises(KeyError, match="'x'"):
                network.run_step({})
            network.run_step(X)
        described = "LambdaOp (op 1, inputs ['y0'], outputs ['y1'])"
        assert described in shown(caught.value)
        section = only(profile)
        assert section.steps == 2
        assert all(row.count == 2 for row in section.rows)
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)

    def test_second_profile_of_network_is_refused(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:
            with pytest.raises(ValueError, match="TorchNetwork is being profiled already"):
                fastnet.profile(network, X)
            with network("infer", 1):
                network.run_step(X)
        assert only(profile).steps == 1

    @pytest.mark.parametrize(
        ("data", "asked", "text"),
        [
            ("x", {}, "a dict or an iterable of dicts, but these are of type str"),
            (X["x"], {}, 'but these are of type Tensor. Put it into a dict: `{"x": x}`'),
            (iter([X] * 3), {"steps": 10}, "The batches end after 3, and cannot"),
            ([X] * 3, {}, "measured: there are 3 batches, and the first 5 steps are skipped. Pass"),
            (X, {"steps": 0}, "steps must be an int of at least"),
            (X, {"skip": -1}, "skip must be an int of at least"),
            (X, {"steps": "3"}, "steps must be an int of at least"),
            (None, {"steps": 7}, "only `skip` applies"),
            (None, {"desired_output_keys": ["y"]}, "only `skip` applies"),
        ],
    )
    def test_invalid_arguments_raise(self, data: Any, asked: dict[str, Any], text: str) -> None:
        network = chain(identity)
        mode = {} if data is None else {"mode": "infer"}
        wrong_type = isinstance(data, (str, torch.Tensor))
        with pytest.raises(TypeError if wrong_type else ValueError, match=text):
            fastnet.profile(network, data, **{**mode, **asked})
        assert fastnet.profile(network, X, mode="infer", steps=1, skip=0).rows
        with pytest.raises(TypeError, match=r"profile measures a network, but got 3 of type int"):
            fastnet.profile(3)  # type: ignore[call-overload]


class TestBatches:
    @pytest.mark.parametrize("steps", [None, 6])
    def test_wait_for_loader_is_entry(
        self, steps: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]

        class Loader:
            def __iter__(self) -> Iterator[Any]:
                for seconds in (100.0, 1.0, 2.0, 3.0):
                    now[0] += seconds
                    yield X

        monkeypatch.setattr("fastnet.profiling.profiler.perf_counter", lambda: now[0])
        profile = fastnet.profile(chain(identity), Loader(), mode="infer", skip=1, steps=steps)
        (row,) = [row for row in profile.entries if row.name == "wait for data"]
        waits = [1.0, 2.0, 3.0] if steps is None else [1.0, 2.0, 3.0, 100.0, 1.0, 2.0]
        assert (row.section, row.count, row.total) == ("infer", len(waits), sum(waits))

    @pytest.mark.parametrize(
        ("steps", "skip", "measured", "run"), [(None, 1, 2, 3), (4, 0, 4, 4), (4, 3, 4, 7)]
    )
    def test_batches_are_repeated_for_steps_and_skip(
        self, steps: int | None, skip: int, measured: int, run: int
    ) -> None:
        seen: list[float] = []
        network = chain(lambda x: seen.append(float(x)) or x)
        data = [{"x": torch.tensor(float(place))} for place in range(3)]
        section = only(fastnet.profile(network, data, mode="infer", steps=steps, skip=skip))
        assert section.steps == measured
        assert seen == [place % 3 for place in range(run)]


class TestThreads:
    def test_step_during_step_of_another_thread_is_unmeasured(self) -> None:
        inside, go_on = threading.Event(), threading.Event()

        def wait(x: Any) -> Any:
            if x.sum() > 8:
                inside.set()
                assert go_on.wait(300)
            return x

        network = chain(wait)
        results: list[Any] = []
        with fastnet.profile(network) as profile, network("infer", 1):
            slow = {"x": torch.full((4, 2), 9.0)}
            thread = threading.Thread(target=lambda: results.append(network.run_step(slow)))
            thread.start()
            assert inside.wait(300)
            result = network.run_step(X)
            go_on.set()
            thread.join()
        assert torch.equal(result["y0"], X["x"])
        assert torch.equal(results[0]["y0"], slow["x"])
        assert (only(profile).steps, profile.unmeasured) == (1, 1)
        assert str(profile).endswith("not measured, as another step was running: 1")
