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
from fastnet.profiling.stamps import STAMP, StepPart, Timeline
from fastnet.profiling.trace_events import trace_events
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
    def test_dict_and_json_are_read_back(self, profile: Profile, tmp_path: Path) -> None:
        data = profile.to_dict()
        assert data["schema"] == "fastnet.profile/4"
        path = tmp_path / "profile.json"
        text = profile.to_json(path)
        assert json.loads(path.read_text()) == json.loads(text) == data
        again = Profile.from_dict(json.loads(json.dumps(data, allow_nan=False)))
        for one in (again, *map(Profile.from_json, (text, path, str(path)))):
            assert one.to_dict() == data
            assert (one.sections, one.rows) == (profile.sections, profile.rows)
            assert str(one) == str(profile)

    def test_about_has_framework_device_and_costs(self, profile: Profile) -> None:
        assert profile.about["framework"] == "torch"
        assert profile.about["device"] == "cpu"
        assert profile.about["versions"]["torch"] == str(torch.__version__)
        # well below what an op takes, and less in the kernel than by a call from Python
        cost = profile.about["stamp_seconds"]
        assert 0 < cost["kernel"] < cost["python"]
        assert repr(profile) == "<Profile of infer: 10 steps, eval: 4 steps>"


class TestTables:
    def test_text_has_table_of_each_section(self, profile: Profile) -> None:
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

    def test_step_excludes_measuring_at_its_ends(self) -> None:
        parts = tuple(StepPart(kind, kind, None) for kind in ("measuring", "op", "rest"))
        rows = (-1, 0, 1, 0, 2, 0)
        stamps = np.array([(at, row, 0) for at, row in enumerate(rows)], STAMP)
        events = trace_events([Timeline("train", parts, stamps)], "fastnet")["traceEvents"]
        (step,) = [event for event in events if event.get("cat") == "step"]
        assert bounds(step) == (1_000_000_000, 4_000_000_000)

    def test_profile_from_json_has_no_trace_file(self, profile: Profile, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="was read from JSON, which has no single"):
            Profile.from_json(profile.to_json()).to_trace(tmp_path / "trace.json")


class TestPictures:
    def test_plot_of_profile_is_saved(self, profile: Profile, tmp_path: Path) -> None:
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

    def test_names_in_plot_are_literal(self) -> None:
        """matplotlib leaves names that begin with "_" out, and reads "$" as a formula."""
        (axes,) = made({"_Scale(x)": [1e-3] * 24, "Sum($a, $b)": [1e-3] * 24}).plot().axes
        shown = [text.get_text().split("  ")[0] for text in axes.get_legend().get_texts()]
        assert shown == ["_Scale(x)", r"Sum(\$a, \$b)"]

    def test_plot_of_no_steps_raises(self) -> None:
        with pytest.raises(ValueError, match="There is nothing to draw: the profile has no steps"):
            Profile().plot()

    def test_plot_without_matplotlib_raises(
        self, profile: Profile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in [one for one in sys.modules if one.partition(".")[0] == "matplotlib"]:
            monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=r"needs matplotlib\. Run: pip install matplotlib"):
            profile.plot()
        assert str(profile)


def made(times: dict[str, Any], kind: str = "op") -> Profile:
    """Make a profile of given times of ops."""
    count = len(next(iter(times.values())))

    def row(name: str, kind: str, index: int | None, values: Any) -> Row:
        return Row.of(
            np.asarray(values), name=name, kind=kind, index=index, section="train", count=count
        )

    rows = [row(name, kind, index, values) for index, (name, values) in enumerate(times.items())]
    step = row("step", "step", None, np.sum(list(times.values()), axis=0))
    step = replace(step, in_step=False)
    return Profile((Section("train", "train", False, count, step, tuple(rows)),))


class TestComparison:
    def test_ratios_are_of_medians(self) -> None:
        source = np.random.default_rng(0)
        first, second = (
            {"a": source.exponential(1e-3, steps), "b": source.exponential(scale, steps)}
            for steps, scale in ((101, 2e-3), (40, 3e-3))
        )
        comparison = made(first).compare(made(second))
        for row in comparison.rows:
            sides = (row.before, first[row.title]), (row.after, second[row.title])
            for side, times in sides:
                assert side is not None
                assert [side.p25, side.p50, side.p75] == np.percentile(times, [25, 50, 75]).tolist()
            expected = np.median(second[row.title]) / np.median(first[row.title])
            assert row.ratio == pytest.approx(expected)
        (step,) = comparison.steps
        sums = [np.median(times["a"] + times["b"]) for times in (first, second)]
        assert step.ratio == pytest.approx(sums[1] / sums[0])
        assert [row.title for row in comparison.rows] == ["a", "b"]

    def test_text_of_comparison_has_both_profiles(self) -> None:
        before = made({"a": [1e-3, 2e-3, 3e-3, 4e-3, 9e-3], "gone": [1e-6] * 5})
        after = made({"new": [2e-6] * 3, "a": [4e-3, 6e-3, 9e-3]})
        assert str(before.compare(after)) == (
            "train: 5 steps before, 3 steps after\n"
            "      kind  before p50      p25      p75  after p50      p25      p75  ratio\n"
            "new   op             -        -        -     2.0 us   2.0 us   2.0 us      -\n"
            "a     op       3.00 ms  2.00 ms  4.00 ms    6.00 ms  5.00 ms  7.50 ms   2.00\n"
            "gone  op        1.0 us   1.0 us   1.0 us          -        -        -      -\n"
            "step  step     3.00 ms  2.00 ms  4.00 ms    6.00 ms  5.00 ms  7.50 ms   2.00"
        )

    def test_saved_profiles_have_same_comparison(self, profile: Profile) -> None:
        comparison = profile.compare(profile)
        again = Profile.from_json(profile.to_json())
        assert str(again.compare(again)) == str(comparison)
        parts = [row for section in profile.sections for row in section.parts]
        assert [row.before for row in comparison.rows] == parts
        assert [row.after for row in comparison.rows] == parts
        assert [row.before for row in comparison.steps] == [one.step for one in profile.sections]
        assert {row.ratio for row in (*comparison.rows, *comparison.steps) if row.row.p50} == {1.0}
        assert repr(comparison) == f"<Comparison of {len(parts)} rows>"

    def test_median_of_zero_has_no_ratio(self) -> None:
        """As of an op that runs in every third step, or of a single trace."""
        rare, always = [0.0, 0.0, 3e-3], [1e-3] * 3
        (row,) = made({"a": rare}).compare(made({"a": always})).rows
        assert row.ratio is None
        (row,) = made({"a": always}).compare(made({"a": rare})).rows
        assert row.ratio == 0

    def test_parts_of_one_profile_have_no_ratio(self) -> None:
        times = [1e-3] * 4
        before = made({"a": times, "b": times, "c": times})
        after = made({"b": times, "x": times, "c": times, "d": times})
        rows = before.compare(after).rows
        assert [(row.title, row.ratio) for row in rows] == [
            ("a", None),
            ("b", 1),
            ("x", None),
            ("c", 1),
            ("d", None),
        ]
        assert [row.title for row in rows if row.before is None] == ["x", "d"]
        assert [row.title for row in rows if row.after is None] == ["a"]
        assert [(row.kind, row.section) for row in rows] == [("op", "train")] * 5

    def test_ops_of_one_name_are_matched_in_order(self) -> None:
        def chain(*times: float) -> Profile:
            (section,) = made({str(time): [time] * 4 for time in times}).sections
            rows = tuple(replace(row, name="a") for row in section.rows)
            return Profile((replace(section, rows=rows),))

        rows = chain(1e-3, 2e-3, 3e-3).compare(chain(1e-3, 5e-3)).rows
        assert [row.ratio for row in rows] == [1, pytest.approx(2.5), None]
        assert [row.title for row in rows] == ["a", "a", "a"]
        assert rows[2].before is not None
        assert rows[2].before.p50 == pytest.approx(3e-3)

    def test_keys_of_one_name_are_matched_by_kind(self) -> None:
        times = [1e-3] * 4
        before, after = made({"x": times}, kind="input"), made({"x": times}, kind="output")
        rows = before.compare(after).rows
        assert [(row.title, row.ratio) for row in rows] == [("output x", None), ("input x", None)]

    def test_profiles_without_common_section_raise(self, profile: Profile) -> None:
        with pytest.raises(ValueError, match="no section in common: the first has"):
            profile.compare(Profile())
        with pytest.raises(TypeError, match=r"not 'before\.json'.*Profile\.from_json"):
            profile.compare("before.json")  # type: ignore[arg-type]

    def test_section_of_one_profile_is_unmatched(self, profile: Profile) -> None:
        first, second = profile.sections
        comparison = profile.compare(Profile((first,)))
        assert comparison.unmatched == (second.name,)
        assert f"{second.name}: only in one of the profiles" in str(comparison)
