"""The forms that a profile takes: dict, JSON, table, trace file, picture."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.op.tensorop import LambdaOp
from fastnet.profiling import Profile, Row, Section
from fastnet.profiling.rows import block_medians
from fastnet.slicer import AxisSlicer
from tests.profiling.trace_format import bounds, validate

figures = pytest.importorskip("matplotlib.figure")
images = pytest.importorskip("matplotlib.image")

X = {"x": torch.ones(3, 2)}


@pytest.fixture(scope="module")
def profile() -> Profile:
    """A profile of two sections, one of them with minibatches."""
    network = TorchNetwork(
        [LambdaOp(lambda x: x + 1, "x", "y"), LambdaOp(lambda y: [y] * 2, "y", ["a", "b"])],
        slicers=AxisSlicer(axis=0, slice="x", unslice=["x", "y", "a", "b"], mode="eval"),
    )
    with fastnet.profile(network) as made:
        for mode, steps in (("infer", 8), ("eval", 4), ("infer", 2)):
            with network(mode, 1):
                for _ in range(steps):
                    network.run_step(X)
    return made


class TestPlainForms:
    def test_a_dict_and_json_and_back(self, profile: Profile, tmp_path: Path) -> None:
        data = profile.to_dict()
        assert data["schema"] == "fastnet.profile/3"
        path = tmp_path / "profile.json"
        text = profile.to_json(path)
        assert json.loads(path.read_text()) == json.loads(text) == data
        again = Profile.from_dict(json.loads(json.dumps(data, allow_nan=False)))
        for one in (again, *map(Profile.from_json, (text, path, str(path)))):
            assert one.to_dict() == data
            assert (one.sections, one.rows) == (profile.sections, profile.rows)
            assert str(one) == str(profile)

    def test_what_it_says_of_itself(self, profile: Profile) -> None:
        assert profile.about["framework"] == "torch"
        assert profile.about["device"] == "cpu"
        assert profile.about["versions"]["torch"] == str(torch.__version__)
        # well below what an op takes, and less in the kernel than by a call from Python
        cost = profile.about["stamp_seconds"]
        assert 0 < cost["kernel"] < cost["python"]
        assert repr(profile) == "<Profile of infer: 10 steps, eval: 4 steps>"


class TestTables:
    def test_plain_text(self, profile: Profile) -> None:
        blocks = str(profile).split("\n\n")
        titles = [block.splitlines()[0] for block in blocks]
        assert titles == ["infer: 10 steps", "eval: 4 steps", "entering the network"]
        lines = blocks[1].splitlines()[2:]
        for row, line in zip([*profile.section("eval").parts], lines, strict=False):
            assert line.startswith(row.title)
            assert f"{profile.section('eval').share(row):.1%}" in line
        pieces = [f"minibatch {place}" for place in range(3)]
        assert [line.split("  ")[0] for line in lines[-5:]] == ["step", "measuring", *pieces]


class TestTraceFile:
    def test_parts_fill_their_step(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        profile.to_trace(path)
        events = validate(json.loads(path.read_text()))["host"]
        steps = [event for event in events if event["cat"] == "step"]
        for step in steps:
            first, last = bounds(step)
            inside = [
                bounds(event)
                for event in events
                if event["cat"] not in ("step", "minibatch")
                and first <= bounds(event)[0] <= bounds(event)[1] <= last
            ]
            inside.sort()
            edges = [first, *(end for _, end in inside)]
            assert edges == [*(start for start, _ in inside), last]
        minibatches = [event for event in events if event["cat"] == "minibatch"]
        assert [event["name"][-1] for event in minibatches[:4]] == ["0", "1", "2", "0"]

    def test_one_that_was_read_has_none(self, profile: Profile, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="was read from JSON, which has no single"):
            Profile.from_json(profile.to_json()).to_trace(tmp_path / "trace.json")


class TestPictures:
    def test_a_bar_for_each_section(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "step.png"
        figure = profile.plot(path)
        assert isinstance(figure, figures.Figure)
        pixels = images.imread(path)
        assert min(pixels.shape[:2]) > 100
        assert len(set(map(tuple, pixels.reshape(-1, pixels.shape[2])))) > 20
        assert len(figure.axes) == 2
        for axes, section in zip(figure.axes, profile.sections, strict=True):
            widths = sum(patch.get_width() for patch in axes.patches)
            assert widths == pytest.approx(section.step.mean)
            assert section.name in axes.get_title(loc="left")

    def test_names_are_shown_as_they_are(self) -> None:
        """matplotlib leaves names that begin with "_" out, and reads "$" as a formula."""
        (axes,) = made({"_Scale(x)": [1e-3] * 24, "Sum($a, $b)": [1e-3] * 24}).plot().axes
        shown = [text.get_text().split("  ")[0] for text in axes.get_legend().get_texts()]
        assert shown == ["_Scale(x)", r"Sum(\$a, \$b)"]

    def test_nothing_to_draw(self) -> None:
        with pytest.raises(ValueError, match="There is nothing to draw: the profile has no steps"):
            Profile().plot()

    def test_without_matplotlib(self, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in [one for one in sys.modules if one.partition(".")[0] == "matplotlib"]:
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"needs matplotlib\. Run: pip install 'fastnet-runt"):
            profile.plot()
        assert str(profile)


def made(times: dict[str, list[float]], kind: str = "op") -> Any:
    """Make a profile of given times of ops."""
    count = len(next(iter(times.values())))

    def row(name: str, kind: str, place: int | None, values: Any) -> Row:
        values = np.asarray(values)
        return Row.of(values, name, kind, place, "train", count, blocks=block_medians(values))

    rows = [row(name, kind, place, values) for place, (name, values) in enumerate(times.items())]
    step = row("step", "step", None, np.sum(list(times.values()), axis=0))
    step = replace(step, in_step=False)
    return Profile((Section("train", "train", False, count, step, tuple(rows)),))


class TestComparison:
    def test_what_grew(self) -> None:
        waves = [1e-6 * (place % 5) for place in range(120)]
        before = made({"a": [1e-3 + wave for wave in waves], "b": [2e-3 + wave for wave in waves]})
        after = made({"a": [3e-3 + wave for wave in waves], "b": [2e-3 + wave for wave in waves]})
        comparison = before.compare(after)
        assert [(row.name, row.verdict) for row in comparison.rows] == [("a", "grew"), ("b", "")]
        grown = comparison.rows[0]
        assert grown.difference == pytest.approx(2e-3)
        assert grown.least == pytest.approx(0.05 * grown.before)
        assert 0 <= grown.noise < 1e-5
        assert comparison.rows[1].difference == pytest.approx(0, abs=1e-12)
        (step,) = comparison.steps
        assert step.verdict == "grew"
        assert (step.before, step.after) == pytest.approx((3e-3, 5e-3), rel=0.01)
        assert [row.verdict for row in after.compare(before).rows] == ["", "shrank"]
        assert [row.name for row in comparison.changed] == ["a"]

    @pytest.mark.parametrize(("least", "verdict"), [(0.02, "grew"), (0.05, ""), (0.03, "")])
    def test_the_least_effect(self, least: float, verdict: str) -> None:
        """A change that is certain, and of three per cent less a little."""
        before, after = (made({"a": [time] * 100}) for time in (1e-3, 1.0299e-3))
        (step,) = before.compare(after, least).steps
        assert (step.verdict, step.noise) == (verdict, pytest.approx(0, abs=1e-12))
        assert step.least == pytest.approx(least * 1e-3)

    def test_a_part_counts_where_it_matters_to_the_step(self) -> None:
        whole = [1e-3] * 100
        before = made({"large": whole, "small": [1e-6] * 100, "more": [4e-5] * 100})
        after = made({"large": whole, "small": [5e-6] * 100, "more": [6e-5] * 100})
        found = {row.name: row for row in before.compare(after).rows}
        verdicts = {name: row.verdict for name, row in found.items()}
        assert verdicts == {"large": "", "small": "", "more": "grew"}
        assert found["small"].least == pytest.approx(0.01 * 1.041e-3)

    def test_new_moved_and_gone(self) -> None:
        times = [1e-3] * 24
        before = made({"a": times, "b": times, "c": times})
        after = made({"b": times, "c": times, "d": times})
        found = {row.name: (row.index, row.verdict) for row in before.compare(after).rows}
        assert found == {"a": (0, "gone"), "b": (0, ""), "c": (1, ""), "d": (2, "new")}

    def test_ops_of_one_name_are_matched_in_order(self) -> None:
        def chain(*times: float) -> Any:
            steps = made({f"a{place}": [time] * 24 for place, time in enumerate(times)})
            (section,) = steps.sections
            rows = tuple(replace(row, name="a") for row in section.rows)
            return Profile((replace(section, rows=rows),))

        found = chain(1e-3, 2e-3, 3e-3).compare(chain(1e-3, 5e-3)).rows
        assert sorted((row.before, row.after, row.verdict) for row in found[:2]) == [
            (pytest.approx(1e-3), pytest.approx(1e-3), ""),
            (pytest.approx(2e-3), pytest.approx(5e-3), "grew"),
        ]
        assert (found[2].before, found[2].verdict) == (pytest.approx(3e-3), "gone")

    def test_too_few_steps_to_tell(self) -> None:
        comparison = made({"a": [1e-3] * 23}).compare(made({"a": [1.0] * 24}))
        (row,) = comparison.rows
        assert (row.noise, row.verdict) == (None, "too noisy")
        assert comparison.changed == ()
        assert "?" in str(comparison)
        assert "train: too few steps to tell" in comparison.notes[0]
        assert str(comparison).endswith(comparison.notes[0])

    @pytest.mark.parametrize(("grown", "verdict"), [(1.0, ""), (1.1, "grew"), (0.9, "shrank")])
    @pytest.mark.parametrize("steps", [1_000, 16_000])
    def test_other_programs_are_no_change(self, steps: int, grown: float, verdict: str) -> None:
        """They slow most steps of both profiles down, each by another factor."""
        source = np.random.default_rng(0)
        found = []
        for _ in range(40):
            sides = []
            for mean, busy in ((1.0, source.uniform(0.2, 0.8)), (grown, source.uniform(0.2, 0.8))):
                # A machine is busy for stretches of many steps.
                slow = np.repeat(source.random(steps // 10) < busy, 10) * source.uniform(0.3, 2.0)
                sides.append(1e-3 * mean * (1 + slow) * source.normal(1, 0.02, steps))
            before, after = (made({"a": list(side)}) for side in sides)
            found.append(before.compare(after).steps[0].verdict)
        assert found.count(verdict) >= 32
        assert len(found) - found.count(verdict) - found.count("too noisy") <= 2

    @pytest.mark.parametrize("steps", [1_000, 16_000])
    def test_a_machine_whose_own_speed_changes(self, steps: int) -> None:
        """The speed of a virtual machine: one side may be measured while it is slower."""
        source = np.random.default_rng(0)
        verdicts = []
        for _ in range(40):
            speeds = np.repeat(source.uniform(1, 2, 8), steps // 4)
            starts = source.integers(0, len(speeds) - steps, 2)
            times = [1e-3 * speeds[start : start + steps] for start in starts]
            before, after = (
                made({"a": list(source.normal(1, 0.02, steps) * one)}) for one in times
            )
            verdicts.append(before.compare(after).steps[0].verdict)
        assert verdicts.count("too noisy") >= 38

    def test_merged_updates_are_whole_periods(self) -> None:
        """Every fourth step updates: blocks of its mean, wherever they begin."""
        times = np.tile([1.0, 1.0, 1.0, 5.0], 30)
        assert block_medians(times, 4) == (2.0,) * 10
        assert block_medians(times[:95], 4) == ()

    def test_nothing_in_common(self, profile: Profile) -> None:
        with pytest.raises(ValueError, match="These profiles have no section in common: one has"):
            profile.compare(Profile())
        with pytest.raises(TypeError, match=r"not 'before\.json'.*Profile\.from_json"):
            profile.compare("before.json")  # type: ignore[arg-type]

    def test_a_section_of_one_profile_only(self, profile: Profile) -> None:
        first, second = profile.sections
        comparison = profile.compare(Profile((first,)))
        assert comparison.unmatched == (second.name,)
        assert f"{second.name}: only in one of the profiles" in str(comparison)
