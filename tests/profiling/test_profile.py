"""Profiles of networks in torch: what is measured, and that measuring changes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.numpyop import LambdaOp as NumpyLambdaOp
from fastnet.op.tensorop import Delete, LambdaOp
from fastnet.op.tensorop.model import ModelOp
from fastnet.profiling import Profile, Section
from fastnet.profiling.sums import Sums
from fastnet.slicer import AxisSlicer, MeanUnslicer
from tests.kernel.ops import shown
from tests.network.programs import (
    batches,
    built,
    losses,
    mlp,
    regression,
    run_all,
    same_weights,
    supervised,
)

X = {"x": torch.ones(4, 2)}


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
    def test_each_part_has_a_row(self) -> None:
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
            "setting",
            "input",
            "dispatch",
            "op",
            "merge",
            "output",
            "release",
            "rest",
            "measuring",
        ]
        assert all(row.count == 10 for row in section.rows)
        assert [row.index for row in section.rows if row.kind == "op"] == [0, 1]

    def test_rows_add_up_to_the_step(self) -> None:
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
        assert {"cut", "join", "deferred", "conversion", "postprocessing"} <= set(kinds(section))
        assert names(section, "cut") == ["cut"]
        assert names(section, "join") == ["join"]

    def test_the_step_is_between_a_clock_in_it_and_one_around_it(self) -> None:
        inside: list[float] = []
        around: list[float] = []

        def work(x: Any) -> Any:
            start = time.perf_counter()
            while time.perf_counter() < start + 2e-4:
                pass
            inside.append(time.perf_counter() - start)
            return x

        network = chain(work, *[identity] * 5)
        with fastnet.profile(network) as profile, network("infer", 1):
            for _ in range(31):
                start = time.perf_counter()
                network.run_step(X)
                around.append(time.perf_counter() - start)
        section = only(profile)
        (measuring,) = [row for row in section.rows if row.kind == "measuring"]
        assert not measuring.in_step
        # whatever else the processor does meanwhile
        assert sum(inside) <= section.step.total + measuring.total <= sum(around)

    def test_a_slow_op_is_found(self) -> None:
        section = only(fastnet.profile(chain(identity, sleep, identity), X, mode="infer", steps=20))
        slowest = max(section.parts, key=lambda row: row.p50)
        assert (slowest.name, slowest.kind, slowest.index) == ("LambdaOp[sleep](y0) -> y1", "op", 1)
        assert slowest.mean >= 200e-6
        # of medians: what else a machine does is long, and seldom twice in one place
        assert slowest.p50 > 0.5 * section.step.p50

    def test_what_a_key_weighs(self) -> None:
        network = TorchNetwork([LambdaOp(lambda x, unused: x, ["x", "nest"], "y")])
        nest = {"a": [torch.zeros(1000), "word"], "b": torch.zeros(3, dtype=torch.int8)}
        section = only(fastnet.profile(network, {**X, "nest": nest}, mode="infer", steps=3))
        weights = {row.title: row.bytes for row in section.rows if row.bytes is not None}
        assert weights == {"input x": 32, "input nest": 4003, "output y": 32}

    def test_openings(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:
            for epoch in (1, 2, 3):
                with network("eval", epoch):
                    network.run_step(X)
            with network("train", 1):
                pass
        counts = {(row.section, row.name): row.count for row in profile.entries}
        assert counts == {
            ("eval", "resolve (worked out)"): 1,
            ("eval", "resolve (found)"): 2,
            ("eval", "open"): 3,
            ("train", "resolve (worked out)"): 1,
            ("train", "open"): 1,
        }
        assert all(not row.in_step and row.total > 0 for row in profile.entries)
        assert only(profile).steps == 3
        assert set(profile.entries) <= set(profile.rows)

    def test_modes_and_other_ops_are_sections_of_their_own(self) -> None:
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

    def test_minibatches(self) -> None:
        network = TorchNetwork(
            [LambdaOp(lambda x: x if x == 0 else time.sleep(5e-3) or x, "x", "y")],
            slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y"]),
        )
        batch = {"x": torch.tensor([0.0, 2.0, 0.0])}
        section = only(fastnet.profile(network, batch, mode="infer", steps=4))
        each = [row for row in section.rows if row.kind == "minibatch"]
        assert [(row.name, row.index, row.count) for row in each] == [
            ("minibatch 0", 0, 4),
            ("minibatch 1", 1, 4),
            ("minibatch 2", 2, 4),
        ]
        assert max(each, key=lambda row: row.p50).index == 1
        assert each[1].p50 >= 5e-3
        assert not any(row.in_step for row in each)
        assert [row.count for row in section.rows if row.kind == "op"] == [12]
        assert names(section, "cut") == ["cut"]

    def test_postprocessing_op_by_op(self) -> None:
        network = chain(
            identity,
            postprocessing=[NumpyLambdaOp(sleep, "y0", "z"), NumpyLambdaOp(identity, "z", "w")],
        )
        section = only(fastnet.profile(network, X, mode="infer", steps=10))
        assert names(section, "postprocessing") == [
            "LambdaOp[sleep](y0) -> z",
            "LambdaOp[identity](z) -> w",
        ]
        assert max(section.parts, key=lambda row: row.p50).name == "LambdaOp[sleep](y0) -> z"

    def test_autocast(self) -> None:
        model = built(mlp, mixed_precision=True)
        section = only(fastnet.profile(TorchNetwork(supervised(model)), batches(2), steps=4))
        assert names(section, "autocast") == ["autocast"]
        plain = built(mlp)
        section = only(fastnet.profile(TorchNetwork(supervised(plain)), batches(2), steps=4))
        assert "autocast" not in kinds(section)

    def test_updates_that_wait(self) -> None:
        model = built(mlp)
        section = only(fastnet.profile(TorchNetwork(supervised(model)), batches(2), steps=4))
        assert names(section, "deferred") == ["deferred updates"]

    def test_percentiles(self) -> None:
        waits = iter([3e-3, *[0.0] * 19])
        network = chain(lambda x: time.sleep(next(waits)) or x)
        section = only(fastnet.profile(network, X, mode="infer", steps=20, skip=0))
        (row,) = [row for row in section.rows if row.kind == "op"]
        assert row.p50 <= row.p95 <= row.p99
        assert row.mean == pytest.approx(row.total / 20)
        assert row.total >= 3e-3
        assert row.p50 < 3e-3 < row.p99 * 1.5

    def test_many_steps_are_summed_up_as_they_come(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastnet.profiling.recording._MAX_STAMPS", 100)
        network = chain(*[identity] * 10)
        section = only(fastnet.profile(network, X, mode="infer", steps=50))
        assert section.steps == 50
        assert all(row.count == 50 for row in section.rows)

    def test_summing_up_meanwhile_is_measuring(self, monkeypatch: pytest.MonkeyPatch) -> None:
        add = Sums.add

        def slow(self: Sums, *args: Any) -> None:
            time.sleep(5e-3)
            add(self, *args)

        monkeypatch.setattr(Sums, "add", slow)
        monkeypatch.setattr("fastnet.profiling.recording._MAX_STAMPS", 20)
        section = only(fastnet.profile(chain(identity), X, mode="infer", steps=20, skip=0))
        (measuring,) = [row for row in section.rows if row.kind == "measuring"]
        assert measuring.total >= 5 * 5e-3

    def test_a_planted_delay_is_found_within_a_tenth(self) -> None:
        def work(x: Any) -> Any:
            end = time.thread_time() + 2e-3
            while time.thread_time() < end:
                pass
            return x

        section = only(fastnet.profile(chain(identity, work), X, mode="infer", steps=60))
        (row,) = [row for row in section.parts if row.name == "LambdaOp[work](y0) -> y1"]
        assert min(row.blocks) == pytest.approx(2e-3, rel=0.1)
        total = sum(row.total for row in section.parts)
        assert total == pytest.approx(section.step.total, rel=0.01)

    def test_modules_of_a_model(self) -> None:
        class Slow(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                time.sleep(2e-3)
                return x

        model = fastnet.build(
            lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), Slow()), None, model_name="net"
        )
        network = TorchNetwork([ModelOp(model, "x", "y")])
        section = only(fastnet.profile(network, X, mode="infer", steps=7, modules=True))
        modules = {row.name: row for row in section.rows if row.kind == "module"}
        assert {name: row.count for name, row in modules.items()} == {"net.0": 7, "net.1": 7}
        (op,) = [row for row in section.rows if row.kind == "op"]
        assert 7 * 2e-3 <= modules["net.1"].total <= op.total
        assert modules["net.0"].total < op.total - modules["net.1"].total
        assert not any(row.in_step for row in modules.values())
        assert not any(one._forward_hooks or one._forward_pre_hooks for one in model)


class TestNothingElseChanges:
    def test_training_is_the_same(self) -> None:
        data = batches(12)

        def train(profiled: bool) -> tuple[list[float], Any]:
            torch.manual_seed(0)
            model = built(mlp, "adam")
            network = TorchNetwork(supervised(model, merge_grad=2))
            seen = []
            for epoch in (1, 2):
                if profiled:
                    with fastnet.profile(network) as profile:
                        seen += losses(run_all(network, data, epoch=epoch))
                    assert only(profile).steps == 12
                else:
                    seen += losses(run_all(network, data, epoch=epoch))
            return seen, model

        (plain, model), (measured, twin) = train(False), train(True)
        assert plain == measured
        same_weights(model, twin)

    def test_steps_are_as_before_when_it_is_over(self) -> None:
        network = chain(identity)
        with network("infer", 1):
            opening = network._context
            assert opening is not None
            bound = opening.bound
            assert bound is not None
            with fastnet.profile(network) as profile:
                assert opening.bound is None
                result = network.run_step(X)
            assert opening.bound is bound
            assert opening.run == bound.step
            network.run_step(X)
        assert only(profile).steps == 1
        assert result["y0"] is X["x"] or torch.equal(result["y0"], X["x"])
        assert network._meter is None

    def test_batches_of_any_mapping(self) -> None:
        class Batch(dict[str, Any]):
            pass

        network = chain(identity)
        with fastnet.profile(network), network("infer", 1):
            result = network.run_step(Batch(X, other=1))
        assert type(result) is dict
        assert set(result) == {"x", "other", "y0"}

    def test_transform(self) -> None:
        network = chain(lambda x: x + 1)
        with fastnet.profile(network) as profile:
            result = network.transform([X, X], mode="infer")
        assert [one["y0"].sum().item() for one in result] == [16, 16]
        assert only(profile).steps == 2

    def test_the_older_api(self) -> None:
        from fastnet.compat import v1

        network = v1.Network([LambdaOp(lambda x: x + 1, "x", "y")])
        with fastnet.profile(network) as profile:
            network.load_epoch("infer", 1)
            batch, prediction = network.run_step(X)
            network.unload_epoch()
        assert batch is X
        assert set(prediction) == {"y"}
        assert only(profile).steps == 1


class TestSkippingInABlock:
    def test_the_first_steps_are_not_measured(self) -> None:
        network = chain(identity)
        with fastnet.profile(network, skip=3) as profile:
            for mode in ("infer", "eval"):
                with network(mode, 1):
                    for _ in range(5):
                        network.run_step(X)
        assert [(one.name, one.steps) for one in profile.sections] == [("infer", 2), ("eval", 5)]

    @pytest.mark.parametrize(
        "asked",
        [
            {"mode": "eval"},
            {"epoch": 2},
            {"ds_id": "a"},
            {"steps": 7},
            {"eager": True},
            {"desired_output_keys": ["y"]},
            {"update": True},
            {"modules": True},
        ],
        ids=lambda asked: next(iter(asked)),
    )
    def test_what_a_block_cannot_have(self, asked: dict[str, Any]) -> None:
        network = chain(identity)
        with pytest.raises(ValueError, match="only `skip` applies"):
            fastnet.profile(network, **asked)

    def test_no_number(self) -> None:
        with pytest.raises(ValueError, match="skip must be an int of at least 0, not -1"):
            fastnet.profile(chain(identity), skip=-1)


class TestErrors:
    def test_a_step_that_fails_leaves_no_half_row(self) -> None:
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
        assert shown(caught.value) == f"too much\nRaised by {described}."
        section = only(profile)
        assert section.steps == 2
        assert all(row.count == 2 for row in section.rows)
        assert sum(row.total for row in section.parts) == pytest.approx(section.step.total)

    def test_an_error_in_the_block_leaves_both_usable(self) -> None:
        network = chain(identity)

        def work(profile: Profile) -> None:
            profiles.append(profile)
            with network("infer", 1):
                network.run_step(X)
            raise RuntimeError("stop")

        profiles: list[Profile] = []
        with pytest.raises(RuntimeError, match="stop"), fastnet.profile(network) as profile:
            work(profile)
        assert only(profiles[0]).steps == 1
        assert only(fastnet.profile(network, X, mode="infer", steps=2)).steps == 2

    def test_a_step_that_fails_in_a_wrapped_run(self) -> None:
        network = TorchNetwork([Delete("x"), LambdaOp(identity, "x", "y")])
        with pytest.raises(KeyError):
            fastnet.profile(network, X)
        with network("infer", 1):
            pass
        assert network._meter is None

    def test_one_profile_at_a_time(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:
            with pytest.raises(ValueError, match="is being profiled already") as caught:
                fastnet.profile(network, X)
            with network("infer", 1):
                network.run_step(X)
        assert str(caught.value) == (
            "This TorchNetwork is being profiled already. Leave that profile's block first; one "
            "profile measures all modes and epochs."
        )
        assert only(profile).steps == 1

    def test_what_cannot_be_profiled(self) -> None:
        with pytest.raises(TypeError, match=r"profile measures a network, but got 3 of type int"):
            fastnet.profile(3)  # type: ignore[call-overload]
        with pytest.raises(
            TypeError, match="a dict or an iterable of dicts, but these are of type str"
        ):
            fastnet.profile(chain(identity), "x")

    def test_batches_that_run_out(self) -> None:
        network = chain(identity)
        with pytest.raises(ValueError, match="There are no more batches after 3, and they cannot"):
            fastnet.profile(network, iter([X] * 3), mode="infer", steps=10)
        assert network._meter is None

    def test_batches_of_which_none_is_measured(self) -> None:
        with pytest.raises(ValueError, match="No step was measured") as caught:
            fastnet.profile(chain(identity), [X] * 3, mode="infer")
        assert str(caught.value) == (
            "No step was measured: there are 3 batches, and the first 5 steps are skipped. Give "
            "more batches, say how many steps to measure, or skip fewer."
        )

    @pytest.mark.parametrize(("name", "value"), [("steps", 0), ("skip", -1), ("steps", "3")])
    def test_numbers_out_of_range(self, name: str, value: Any) -> None:
        with pytest.raises(ValueError, match=f"{name} must be an int of at least"):
            fastnet.profile(chain(identity), X, mode="infer", **{name: value})

    def test_a_profile_of_nothing(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:
            assert str(profile) == "a profile of no steps"
        assert (profile.sections, profile.rows) == ((), ())
        assert (str(profile), repr(profile)) == ("a profile of no steps", "<Profile of no steps>")


class TestBatches:
    @pytest.mark.parametrize("steps", [None, 6])
    def test_what_a_loader_is_waited_for(
        self, steps: int | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = [0.0]

        class Loader:
            def __iter__(self) -> Iterator[Any]:
                for seconds in (100.0, 1.0, 2.0, 3.0):
                    now[0] += seconds
                    yield X

        monkeypatch.setattr("fastnet.profiling.session.perf_counter", lambda: now[0])
        profile = fastnet.profile(chain(identity), Loader(), mode="infer", skip=1, steps=steps)
        (row,) = [row for row in profile.entries if row.name == "wait for data"]
        waits = [1.0, 2.0, 3.0] if steps is None else [1.0, 2.0, 3.0, 100.0, 1.0, 2.0]
        assert (row.section, row.count, row.total) == ("infer", len(waits), sum(waits))

    @pytest.mark.parametrize("given", [X, [X] * 3, (X,) * 3], ids=["dict", "list", "tuple"])
    def test_what_is_there_is_not_waited_for(self, given: Any) -> None:
        profile = fastnet.profile(chain(identity), given, mode="infer", skip=0, steps=3)
        assert "wait for data" not in [row.name for row in profile.entries]

    def test_one_is_run_again_and_again(self) -> None:
        seen: list[Any] = []
        network = chain(lambda x: seen.append(x) or x)
        assert only(fastnet.profile(network, X, mode="infer")).steps == 100
        assert len(seen) == 105

    @pytest.mark.parametrize(
        ("steps", "skip", "measured", "run"), [(None, 1, 2, 3), (4, 0, 4, 4), (4, 3, 4, 7)]
    )
    def test_several(self, steps: int | None, skip: int, measured: int, run: int) -> None:
        seen: list[float] = []
        network = chain(lambda x: seen.append(float(x)) or x)
        data = [{"x": torch.tensor(float(place))} for place in range(3)]
        section = only(fastnet.profile(network, data, mode="infer", steps=steps, skip=skip))
        assert section.steps == measured
        assert seen == [place % 3 for place in range(run)]

    def test_what_to_open(self) -> None:
        network = TorchNetwork(
            [
                LambdaOp(identity, "x", "y", ds_id="a"),
                LambdaOp(identity, "x", "z", mode="eval"),
                LambdaOp(identity, "x", "w"),
            ]
        )
        profile = fastnet.profile(
            network, X, mode="eval", epoch=3, ds_id="a", desired_output_keys=["y"], steps=2
        )
        assert names(only(profile), "output") == ["y"]
        assert len(names(only(profile), "op")) == 3


class TestThreads:
    def test_steps_in_another_thread(self) -> None:
        network = chain(identity)
        with fastnet.profile(network) as profile:

            def work() -> None:
                with network("infer", 1):
                    for _ in range(5):
                        network.run_step(X)

            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        assert only(profile).steps == 5

    def test_a_step_beside_another_runs_unmeasured(self) -> None:
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

    def test_a_step_within_a_step(self) -> None:
        network = chain(lambda x: network.run_step({"x": x - 1})["y0"] if x.sum() > 0 else x)
        with fastnet.profile(network) as profile, network("infer", 1):
            assert network.run_step({"x": torch.tensor(3.0)})["y0"] == 0
        assert (only(profile).steps, profile.unmeasured) == (1, 3)
