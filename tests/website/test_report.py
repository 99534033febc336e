"""The pages of measurements, where Plotly is installed: as for `make docs`."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("plotly", minversion="6")

from website import report

PAGES = {page.name: page for page in report.pages()}


def test_each_file_of_results_has_a_page() -> None:
    there = {path.stem for path in report.RESULTS.iterdir() if path.suffix in (".json", ".md")}
    assert PAGES.keys() == there
    assert not there & {page.title for page in PAGES.values()}


@pytest.mark.parametrize("page", PAGES.values(), ids=lambda page: page.name)
def test_charts_are_where_the_page_names_them(page: report.Page) -> None:
    named = re.findall(r"<!-- chart (\S+) -->", page.text)
    assert sorted(named) == sorted(page.charts)
    shown = report.charts_in(page.text, page.charts)
    assert shown.count('<div class="chart">') == len(named)
    assert "<!-- chart" not in shown
    for chart in page.charts.values():
        assert chart.count('"type":"log"') <= chart.count("(logarithmic axis)")


def test_a_table_has_what_was_measured() -> None:
    data = json.loads((report.RESULTS / "report.json").read_text(encoding="utf-8"))
    (measured,) = [one for one in data["environments"]["main"] if one["workload"] == "mlp_train"]
    ratio = measured["ratios"]["fastnet"]["bare"]["median"]
    (row, *_) = re.findall(
        r"^\| MLP train step \| hand-written loop \|.*", PAGES["report"].text, re.M
    )
    assert f"| {ratio:.2f} |" in row


def test_a_chart_has_what_was_measured() -> None:
    data = json.loads((report.RESULTS / "ranks.json").read_text(encoding="utf-8"))
    (chart,) = PAGES["ranks"].charts.values()
    for line in data["lines"]:
        assert str(line["ratio"]["median"]) in chart


def test_home_page_has_a_chart_of_the_steps_in_its_table() -> None:
    readme = (report.RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    page = report.home(readme)
    assert page.text.index("<!-- chart home -->") < page.text.index("\n## ")
    data = json.loads((report.RESULTS / "compiled.json").read_text(encoding="utf-8"))
    ratios = {one["workload"]: one["ratios"] for one in data["environments"]["main"]}
    for name in report.HOME:
        assert str(ratios[f"compiled_{name}"]["fastnet"]["bare"]["median"]) in page.charts["home"]


def test_pages_of_measurements_do_not_shout() -> None:
    for page in PAGES.values():
        assert not re.search(r"\b(MISSED|FAILED|WARNING)\b", page.text), page.name
