"""The pages of measurements, made from the files in bench/results."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from bench import ranks as bench_ranks
from bench import tables
from bench.ranks import Line
from bench.results import Report, sections
from bench.timing import Spread
from website import charts

RESULTS = Path(__file__).parents[1] / "bench" / "results"

# The pages, in the order of the navigation.
TITLES = {
    "report": "Steps in PyTorch",
    "compiled": "Compiled steps in PyTorch",
    "compiled_large": "Compiled steps of large models",
    "compiled_threads": "Compiled steps on two threads",
    "entering": "Entering a network",
    "compiled_parts": "Compiled steps of BERT",
    "gpu": "Steps on a GPU",
    "verification": "What verification finds",
    "first_steps": "First compiled steps and memory",
    "compiled_instructions": "Instructions of a compiled step",
    "products_zen4": "Matrix products on Zen 4",
    "products_zen5": "Matrix products on Zen 5",
    "tensorflow": "Steps in TensorFlow",
    "compiled_tensorflow": "Compiled steps in TensorFlow",
    "ranks": "Distributed training",
    "fit": "FastEstimator's Estimator",
    "growth": "Growth with ops, keys and slices",
    "ops": "Overhead of each op",
    "instructions": "Instructions of the kernel",
}


# The works of the chart on the home page, which has a table of them.
HOME = ("mlp_sgd", "mlp_adam", "modules120_adam", "pair", "gpt_adam", "lenet_train")


@dataclass
class Page:
    """A page of measurements.

    Attributes:
        name: The name of its file in bench/results, without its ending.
        text: The page, with `<!-- chart NAME -->` where a chart belongs.
        charts: The charts, by name, as HTML.
    """

    name: str
    text: str
    charts: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """Where the page is on the site."""
        return f"measurements/{self.name}.md"

    @property
    def title(self) -> str:
        """Its title in the navigation."""
        return TITLES[self.name]


def pages() -> Iterator[Page]:
    """Yield a page for each file of results, in the order of the titles."""
    there = {path.stem for path in RESULTS.iterdir() if path.suffix in (".json", ".md")}
    if untitled := there - TITLES.keys():
        raise ValueError(f"No title for {', '.join(sorted(untitled))} of bench/results")
    yield from (_page(name) for name in TITLES if name in there)


def charts_in(html: str, made: dict[str, str]) -> str:
    """Put charts where a page names them.

    Args:
        html: The page's HTML.
        made: The charts, by name.

    Returns:
        The HTML with the charts.
    """
    return re.sub(r"<!-- chart (\S+) -->", lambda found: made[found[1]], html)


def home(readme: str) -> Page:
    """Return the home page: the README, with a chart of compiled steps above its first section.

    Args:
        readme: The README.

    Returns:
        The page.
    """
    data = json.loads((RESULTS / "compiled.json").read_text(encoding="utf-8"))
    section, *_ = sections(Report.from_json(data))
    rows = {row.workload.name: row for row in section.rows}
    chosen = dataclasses.replace(section, rows=[rows[f"compiled_{name}"] for name in HOME])
    figure = charts.ratios(chosen)
    assert figure is not None
    title = "Compiled training steps, beside a hand-written loop (less is better):"
    above, heading, below = readme.partition("\n## ")
    text = f"{above}\n{title}\n\n<!-- chart home -->\n{heading}{below}"
    return Page("index", text, {"home": charts.to_html(figure, "chart-home")})


def _page(name: str) -> Page:
    file = RESULTS / f"{name}.json"
    if not file.exists():
        return Page(name, _below(f"# {TITLES[name]}", _written(name)))
    data = json.loads(file.read_text(encoding="utf-8"))
    if name == "ranks":
        return _of_ranks(data)
    if name == "instructions":
        return _of_instructions(data)
    return _of_report(name, Report.from_json(data))


def _of_report(name: str, report: Report) -> Page:
    page = Page(name, f"# {TITLES[name]}\n\n{''.join(tables.remarks(report))}")
    parts = [page.text]

    def show(chart: str, figure: go.Figure) -> None:
        page.charts[chart] = charts.to_html(figure, f"chart-{chart}")
        parts.append(f"<!-- chart {chart} -->")

    for number, section in enumerate(sections(report)):
        figure = charts.ratios(section)
        if figure is not None:
            parts.append(f"## {section.title}")
            show(f"ratios-{number}", figure)
        if section.costs:
            parts.append(f"## {section.title}: overhead of each op")
            show(f"costs-{number}", charts.costs(section.costs))
        for group in section.growth:
            parts.append(f"## {group.section}: growth with {group.what}")
            show(f"{group.name}-{number}", charts.grows(group))
    parts += tables.all_tables(report)
    page.text = "\n\n".join(parts) + "\n"
    return page


def _of_ranks(data: dict[str, Any]) -> Page:
    lines = [Line(**{**one, "ratio": Spread(**one["ratio"])}) for one in data["lines"]]
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    text = [
        f"# {TITLES['ranks']}",
        f"Two processes over gloo, a thread each. Measured with {versions}.",
        "<!-- chart ranks -->",
        bench_ranks.table(lines),
    ]
    made = {"ranks": charts.to_html(charts.ranks(lines), "chart-ranks")}
    return Page("ranks", "\n\n".join(text), made)


def _of_instructions(data: dict[str, Any]) -> Page:
    parts = [
        f"# {TITLES['instructions']}",
        "Instructions that one more of each thing takes, counted under callgrind: the kernel's "
        "own, and all, with those of CPython's functions. `make instructions` counts anew.",
    ]
    for build, counted in data.items():
        rows = [
            f"| `{name}` | {figure['own']:,.0f} | {figure['all']:,.0f} |"
            for name, figure in counted["figures"].items()
        ]
        head = f"{build}: compiled by {counted['compiler']}, from Cython {counted['cython']}."
        parts.append("\n".join([head, "", "| what | own | all |", "|---|---:|---:|", *rows]))
    return Page("instructions", "\n\n".join(parts) + "\n")


def _written(name: str) -> str:
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def _below(title: str, text: str) -> str:
    """Put a title in the place of a file's own."""
    return f"{title}\n\n{re.sub(r'^#+ .*$', '', text, count=1, flags=re.MULTILINE).lstrip()}"
