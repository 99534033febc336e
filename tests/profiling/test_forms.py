"""The forms that a profile takes: dict, JSON, table, DataFrame, trace file, picture."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastnet
from fastnet.network import TorchNetwork
from fastnet.network.metering import WAIT
from fastnet.op.tensorop import LambdaOp
from fastnet.profiling import Profile, Row, Section
from fastnet.profiling.blocks import Blocks
from fastnet.profiling.recording import Recorder
from fastnet.profiling.rows import Stats
from fastnet.slicer import AxisSlicer
from tests.profiling.trace_format import bounds, validate

pandas = pytest.importorskip("pandas")
rich_console = pytest.importorskip("rich.console")
figures = pytest.importorskip("matplotlib.figure")
images = pytest.importorskip("matplotlib.image")
to_rgb = pytest.importorskip("matplotlib.colors").to_rgb

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


def luminance(color: Any) -> float:
    """Return how bright a colour is, as the Web Content Accessibility Guidelines define it."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in to_rgb(color)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class TestPlainForms:
    def test_a_dict_and_back(self, profile: Profile) -> None:
        data = profile.to_dict()
        assert data["schema"] == "fastnet.profile/1"
        again = Profile.from_dict(json.loads(json.dumps(data, allow_nan=False)))
        assert again.to_dict() == data
        assert (again.sections, again.rows, str(again)) == (
            profile.sections,
            profile.rows,
            str(profile),
        )

    def test_json_and_back(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "profile.json"
        text = profile.to_json(path)
        assert json.loads(path.read_text()) == json.loads(text) == profile.to_dict()
        for source in (text, path, str(path)):
            assert Profile.from_json(source).to_dict() == profile.to_dict()

    @pytest.mark.parametrize("schema", [None, "fastnet.profile/99"])
    def test_another_schema(self, profile: Profile, schema: str | None) -> None:
        with pytest.raises(ValueError, match=r"no profile of the schema 'fastnet\.profile/1', but"):
            Profile.from_dict({**profile.to_dict(), "schema": schema})

    def test_what_it_says_of_itself(self, profile: Profile) -> None:
        assert profile.about["framework"] == "torch"
        assert profile.about["device"] == "cpu"
        assert profile.about["versions"]["torch"] == str(torch.__version__)
        # well below what an op takes, and less in the kernel than by a call from Python
        cost = profile.about["stamp_seconds"]
        assert 0 < cost["kernel"] < cost["python"]
        assert repr(profile) == "<Profile of infer: 10 steps, eval: 4 steps>"

    def test_a_data_frame(self, profile: Profile) -> None:
        frame = profile.to_dataframe()
        assert isinstance(frame, pandas.DataFrame)
        assert len(frame) == len(profile.rows)
        in_step = frame[frame.in_step].groupby("section").total.sum()
        for section in profile.sections:
            assert in_step[section.name] == pytest.approx(section.step.total)


class TestTables:
    def test_plain_text(self, profile: Profile) -> None:
        blocks = str(profile).split("\n\n")
        assert [block.splitlines()[0] for block in blocks] == [
            "infer: 10 steps",
            "eval: 4 steps",
            "openings",
        ]
        lines = blocks[1].splitlines()[2:]
        for row, line in zip([*profile.section("eval").parts], lines, strict=False):
            assert line.startswith(row.title)
            assert f"{profile.section('eval').share(row):.1%}" in line
        assert [line.split("  ")[0] for line in lines[-5:]] == [
            "step",
            "measuring",
            "minibatch 0",
            "minibatch 1",
            "minibatch 2",
        ]

    @pytest.mark.parametrize("width", [60, 80, 160])
    def test_rich(self, profile: Profile, width: int) -> None:
        out = io.StringIO()
        rich_console.Console(file=out, width=width).print(profile)
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        for word in ("infer: 10 steps", "p99", "dispatch", "minibatch 2", "openings"):
            assert word in text
        assert ("total" in text) == (width == 160)
        # nothing is cut off, be it a number or a name
        assert "…" not in text
        assert text.count("LambdaOp") == 4

    def test_rich_of_nothing(self) -> None:
        out = io.StringIO()
        rich_console.Console(file=out, width=80).print(Profile(unmeasured=2))
        assert out.getvalue().splitlines() == [
            "a profile of no steps",
            "not measured, because another step was under way: 2",
        ]


class TestTraceFile:
    def test_it_is_valid(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        profile.to_trace(path)
        tracks = validate(json.loads(path.read_text()))
        assert set(tracks) == {"host"}
        events = tracks["host"]
        steps = [event for event in events if event["cat"] == "step"]
        assert [event["args"]["section"] for event in steps] == ["infer"] * 10 + ["eval"] * 4
        assert min(bounds(event)[0] for event in events) == 0

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
        assert [event["name"] for event in minibatches[:4]] == [
            "minibatch 0",
            "minibatch 1",
            "minibatch 2",
            "minibatch 0",
        ]

    def test_it_tells_what_the_rows_tell(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        profile.to_trace(path)
        events = validate(json.loads(path.read_text()))["host"]
        cost = profile.about["stamp_seconds"]["kernel"]
        for section in profile.sections:
            for row in section.parts:
                if row.kind != "op":
                    continue
                found = [
                    event["dur"] * 1e-6 - cost
                    for event in events
                    if event["name"] == row.name and event["args"]["section"] == section.name
                ]
                assert len(found) == row.count
                assert sum(found) == pytest.approx(row.total, abs=1e-9 * row.count)

    def test_one_that_was_read_has_none(self, profile: Profile, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="was read from JSON, which tells nothing of single"):
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

    def test_an_op_has_one_colour(self) -> None:
        def wait(x: Any) -> Any:
            time.sleep(1e-3)
            return x

        network = TorchNetwork(
            [LambdaOp(wait, "x", "more", mode="eval"), LambdaOp(wait, "x", "y")],
        )
        with fastnet.profile(network) as profile:
            for mode in ("infer", "eval"):
                with network(mode, 1):
                    network.run_step(X)
        colors: list[dict[str, Any]] = []
        for axes in profile.plot().axes:
            legend = axes.get_legend()
            names = [text.get_text().split("  ")[0] for text in legend.get_texts()]
            patches = [patch.get_facecolor() for patch in legend.get_patches()]
            colors.append(dict(zip(names, patches, strict=True)))
        infer, later = colors
        assert infer["LambdaOp[wait](x) -> y"] == later["LambdaOp[wait](x) -> y"]
        assert later["LambdaOp[wait](x) -> more"] != later["LambdaOp[wait](x) -> y"]

    def test_labels_can_be_read(self, profile: Profile) -> None:
        for axes in profile.plot().axes:
            assert axes.texts
            for label in axes.texts:
                middle = label.get_position()[0]
                (under,) = [
                    patch
                    for patch in axes.patches
                    if patch.get_x() < middle < patch.get_x() + patch.get_width()
                ]
                darker, lighter = sorted(map(luminance, (label.get_color(), under.get_facecolor())))
                assert (lighter + 0.05) / (darker + 0.05) > 2

    def test_nothing_to_draw(self) -> None:
        with pytest.raises(ValueError, match="There is nothing to draw: the profile has no steps"):
            Profile().plot()

    def test_every_name_is_in_the_legend(self, profile: Profile) -> None:
        figure = profile.plot()
        for axes, section in zip(figure.axes, profile.sections, strict=True):
            shown = " ".join(text.get_text() for text in axes.get_legend().get_texts())
            for row in section.parts:
                assert row.title in shown or section.share(row) < 0.01


MISSING = {
    "matplotlib": (
        lambda profile: profile.plot(),
        "Drawing a profile needs matplotlib, which is not installed. Run: pip install "
        "'fastnet[profile]'",
    ),
    "pandas": (
        lambda profile: profile.to_dataframe(),
        "A profile as a DataFrame needs pandas, which is not installed. Run: pip install 'pandas'",
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_what_is_not_there(profile: Profile, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, text = MISSING[name]
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError) as caught:
        make(profile)
    assert str(caught.value) == text
    assert str(profile)


def test_nothing_is_imported_that_is_not_asked_for(tmp_path: Path) -> None:
    code = (
        "import sys, torch, fastnet\n"
        "from fastnet.op.tensorop import LambdaOp\n"
        "network = fastnet.TorchNetwork([LambdaOp(lambda x: x, 'x', 'y')])\n"
        "profile = fastnet.profile(network, {'x': torch.ones(1)}, mode='infer', steps=2)\n"
        "str(profile), profile.to_json(), profile.compare(profile)\n"
        f"profile.to_trace({str(tmp_path / 'trace.json')!r})\n"
        "found = {'matplotlib', 'rich', 'pandas', 'tensorflow'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def made(times: dict[str, list[float]], kind: str = "op") -> Any:
    """Make a profile of given times of ops, on a machine at full pace."""
    count = len(next(iter(times.values())))
    blocks = Blocks.of(None, count, 1)

    def row(name: str, kind: str, place: int | None, values: Any) -> Row:
        values = np.asarray(values)
        stats = vars(Stats.of(values))
        return Row(name, kind, place, "train", count, **stats, blocks=blocks.medians(values))

    rows = [row(name, kind, place, values) for place, (name, values) in enumerate(times.items())]
    step = row("step", "step", None, np.sum(list(times.values()), axis=0))
    step = replace(step, in_step=False)
    return Profile((Section("train", "train", False, count, step, tuple(rows)),))


SHARED = (
    "Where others run programs too, pin both runs to one core that they leave alone (on Linux with "
    "taskset -c), and take turns: before, after, before, after."
)


def with_waits(profile: Any, *waits: float) -> Any:
    """Give a profile what a loader was waited for in each step."""
    recorder = Recorder()
    for seconds in waits:
        recorder.record("train", WAIT, seconds)
    profile.openings = recorder.openings()
    return profile


class TestComparison:
    def test_the_loader_takes_part(self) -> None:
        """Of workers that bring four batches at a time three are not waited for."""
        steps = {"a": [1e-3] * 120}
        before = with_waits(made(steps), *[0.0, 0.0, 0.0, 8e-3] * 30)
        after = with_waits(made(steps), *[0.0, 0.0, 0.0, 2e-3] * 30)
        comparison = before.compare(after)
        wait, op = sorted(comparison.rows, key=lambda row: row.difference)
        assert (wait.name, wait.section, wait.verdict) == ("wait for data", "train", "shrank")
        assert (wait.before, wait.after) == (pytest.approx(2e-3), pytest.approx(0.5e-3))
        assert (op.name, op.verdict) == ("a", "")
        assert comparison.steps[0].verdict == ""
        assert "wait for data" in str(comparison)
        # one that was not measured has not come or gone
        for one, other in ((before, made(steps)), (made(steps), after)):
            assert [row.name for row in one.compare(other).rows] == ["a"]

    def test_the_loader_of_a_saved_profile(self) -> None:
        before = with_waits(made({"a": [1e-3] * 60}), *[2e-3] * 60)
        again = Profile.from_dict(json.loads(before.to_json()))
        (_, wait) = sorted(again.compare(before).rows, key=lambda row: row.name)
        assert (wait.name, wait.difference, wait.verdict) == ("wait for data", 0, "")

    def test_what_grew(self) -> None:
        waves = [1e-6 * (place % 5) for place in range(120)]
        before = made({"a": [1e-3 + wave for wave in waves], "b": [2e-3 + wave for wave in waves]})
        after = made({"a": [3e-3 + wave for wave in waves], "b": [2e-3 + wave for wave in waves]})
        comparison = before.compare(after)
        assert [(row.name, row.verdict) for row in comparison.rows] == [("a", "grew"), ("b", "")]
        grown = comparison.rows[0]
        assert grown.difference == pytest.approx(2e-3)
        assert grown.least == pytest.approx(0.05 * 1.002e-3)
        assert 0 < grown.noise < 1e-5
        assert comparison.rows[1].difference == pytest.approx(0, abs=1e-12)
        (step,) = comparison.steps
        assert (step.verdict, step.before, step.after) == (
            "grew",
            pytest.approx(3.002e-3 + 2e-6),
            pytest.approx(5.002e-3 + 2e-6),
        )
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
        assert {name: row.verdict for name, row in found.items()} == {
            "large": "",
            "small": "",
            "more": "grew",
        }
        assert found["small"].least == pytest.approx(0.01 * 1.041e-3)

    def test_least_out_of_range(self, profile: Profile) -> None:
        with pytest.raises(ValueError, match="least is a part of the step, from 0 to 1") as caught:
            profile.compare(profile, 5)
        assert str(caught.value).endswith("(0.05 is 5 %), but it is 5.")

    def test_an_outlier_is_noise(self) -> None:
        flat = [1e-4 + 1e-8 * (place % 7) for place in range(100)]
        spike = [*flat[:-1], 0.05]
        (row,) = made({"a": flat}).compare(made({"a": spike})).rows
        assert row.verdict == ""
        assert abs(row.difference) < 1e-7

    def test_new_moved_and_gone(self) -> None:
        times = [1e-3] * 24
        before = made({"a": times, "b": times, "c": times})
        after = made({"b": times, "c": times, "d": times})
        found = {row.name: (row.place, row.verdict) for row in before.compare(after).rows}
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
        assert comparison.notes == (
            "train: too short to tell: 23 steps were measured before, and it takes 24 (or so many "
            "rounds of updates) at least. Measure more.",
        )
        assert str(comparison).endswith(comparison.notes[0])

    def test_too_noisy_to_tell(self) -> None:
        """It says how many steps would do: four times as many halve the interval."""
        source = np.random.default_rng(3)
        before, after = (made({"a": list(source.normal(1e-3, 4e-4, 100))}) for _ in range(2))
        comparison = before.compare(after)
        (step,) = comparison.steps
        assert step.verdict == "too noisy"
        assert step.noise is not None
        steps = 100 * round((2 * step.noise / step.least) ** 2)
        assert steps > 200
        assert comparison.notes == (
            "train: too noisy to tell whether the step grew or shrank by "
            f"{1e6 * step.least:.1f} us or more. Measure about {steps} steps, both before and "
            f"after. {SHARED}",
        )

    @pytest.mark.parametrize(
        ("grown", "pace", "slowness", "python", "verdict", "slower"),
        [
            (1.4, 1.5e-5, 1.0, "3.11", "too noisy", 1.5),  # the machine was that much slower
            (1.6, 1.5e-5, 1.0, "3.11", "grew", 1.5),
            (0.7, 1.5e-5, 1.0, "3.11", "too noisy", 1.5),
            (0.6, 1.5e-5, 1.0, "3.11", "shrank", 1.5),
            (1.4, 1.0e-5, 1.5, "3.11", "too noisy", 1.5),  # or at times
            (1.6, 1.0e-5, 1.5, "3.11", "grew", 1.5),
            (1.4, 1.2e-5, 1.25, "3.11", "too noisy", 1.5),
            (1.4, 1.02e-5, 1.0, "3.11", "grew", 1.02),  # too little to tell of, but it counts
            (1.06, 1.02e-5, 1.0, "3.11", "grew", 1.02),
            (1.04, 1.02e-5, 1.0, "3.11", "too noisy", 1.02),
            (1.4, 1.5e-5, 1.0, "3.12", "grew", 1.0),  # another Python has a pace of its own
            (1.4, 1.5e-5, 1.5, "3.12", "too noisy", 1.5),
        ],
    )
    def test_a_machine_at_another_pace(
        self,
        grown: float,
        pace: float,
        slowness: float,
        python: str,
        verdict: str,
        slower: float,
    ) -> None:
        """A step is not blamed for what the machine explains."""
        before, after = (made({"a": [time] * 100}) for time in (1e-3, grown * 1e-3))
        before.about, after.about = {"python": "3.11"}, {"python": python}
        (section,) = before.sections
        before.sections = (replace(section, pace=1e-5),)
        (section,) = after.sections
        after.sections = (replace(section, pace=pace, slowness=slowness),)
        comparison = before.compare(after)
        assert [row.verdict for row in (*comparison.steps, *comparison.rows)] == [verdict] * 2
        assert comparison.steps[0].noise == pytest.approx(
            (1 - 1 / slower) * max(grown, 1) * 1e-3, abs=1e-9
        )
        text = (
            "train: the machine may have been 1.50 times slower at one time than at the other, and "
            f"what that explains counts as noise. Measure again, or more steps. {SHARED}"
        )
        assert text in comparison.notes or slower != 1.5
        assert slower == 1.5 or not any("machine" in note for note in comparison.notes)

    def test_a_profile_without_blocks(self) -> None:
        """One that an earlier version has saved can be read, and tells of no change."""
        now = made({"a": [1e-3] * 100})
        data = now.to_dict()
        for section in data["sections"]:
            for name in ("pace", "slowness", "trains"):
                del section[name]
            for row in (section["step"], *section["rows"]):
                del row["blocks"]
        (row,) = Profile.from_dict(data).compare(now).rows
        assert (row.before, row.verdict) == (pytest.approx(1e-3), "too noisy")

    def test_its_forms(self, profile: Profile, tmp_path: Path) -> None:
        comparison = profile.compare(profile)
        assert comparison.changed == ()
        data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
        assert data["schema"] == "fastnet.comparison/2"
        assert (data["level"], data["least"]) == (0.95, 0.05)
        assert len(data["rows"]) == len(comparison.rows)
        assert {row["section"] for row in data["steps"]} == {"infer", "eval"}
        title = (
            "infer: by how much a step grew, the most first; a verdict needs more than the 95 % "
            "interval and 5 % of it (of a part, 1 % of the step too)"
        )
        assert str(comparison).splitlines()[0] == title
        out = io.StringIO()
        rich_console.Console(file=out, width=90).print(comparison)
        assert "verdict" in out.getvalue()
        figure = comparison.plot(tmp_path / "comparison.png")
        assert min(images.imread(tmp_path / "comparison.png").shape[:2]) > 100
        bars = figure.axes[0]
        heights = sum(patch.get_height() for patch in bars.patches)
        assert heights == pytest.approx(2 * profile.section("infer").step.mean)

    def test_one_that_was_read(self, profile: Profile) -> None:
        again = Profile.from_json(profile.to_json())
        assert again.compare(profile).to_dict() == profile.compare(again).to_dict()

    def test_nothing_in_common(self, profile: Profile) -> None:
        with pytest.raises(ValueError, match="These profiles have nothing to compare: one is of"):
            profile.compare(Profile())
