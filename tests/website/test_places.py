"""Links between files of the repository, as the site has them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from website.broken import broken
from website.places import PAGES, address, in_repository, on_site, relinked

ROOT = Path(__file__).parents[2]


def nowhere(file: str) -> None:
    return None


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("index.md", "[a](docs/threads.md#what)", "[a](threads.md#what)"),
        ("index.md", "![a](bench/results/report.png)", "![a](measurements/report.png)"),
        ("threads.md", "[a](../README.md#more)", "[a](index.md#more)"),
        ("threads.md", "[a](copying.md)", "[a](copying.md)"),
        ("threads.md", "[a](../bench/results/fit.md)", "[a](measurements/fit.md)"),
        ("measurements/method.md", "[a](../docs/compile.md)", "[a](../compile.md)"),
        ("changelog.md", "[a](https://semver.org)", "[a](https://semver.org)"),
        ("threads.md", "[a](#below)", "[a](#below)"),
        ("threads.md", "[a](../setup.py)", "a"),
    ],
)
def test_links(page: str, link: str, expected: str) -> None:
    assert relinked(link, page, nowhere) == expected


def test_address_of_the_site() -> None:
    assert address("Owner/name") == "https://owner.github.io/name/"


def test_a_file_that_the_site_lacks() -> None:
    text = relinked("[a](../tests/test_nest.py)", "threads.md", lambda file: f"https://x/{file}")
    assert text == "[a](https://x/tests/test_nest.py)"


def test_code_is_left_as_it_is() -> None:
    text = "```python\nx[i](../setup.py)\n- y\n```\n[a](../setup.py)"
    assert relinked(text, "threads.md", nowhere) == text.replace("[a](../setup.py)", "a")


def test_a_list_after_a_paragraph() -> None:
    assert relinked("Two:\n- a\n- b\n", "threads.md", nowhere) == "Two:\n\n- a\n- b\n"
    for text in ("- a\n  more\n- b\n", "1. a\n2. b\n", "| a |\n"):
        assert relinked(text, "threads.md", nowhere) == text


def test_every_page_of_the_navigation_comes_from_a_file() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for page in re.findall(r": ([\w/-]+\.md)$", text, re.MULTILINE):
        assert (ROOT / in_repository(page)).is_file(), page
    for file in PAGES:
        assert (ROOT / file).is_file(), file
        assert on_site(file) is not None


def test_broken_links(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "picture.png").touch()
    (tmp_path / "index.html").write_text('<a href="a/#here"></a><a href="https://x.org/y"></a>')
    (tmp_path / "404.html").write_text('<a href="/gone"></a>')
    (tmp_path / "a" / "index.html").write_text(
        '<p id="here"><img src="../picture.png"><a href="#gone"></a><a href="../b/"></a>'
        '<a href="../picture.png#part"></a><a href=".."></a><a href="../#gone"></a>'
    )
    assert sorted(broken(tmp_path)) == [
        "a/index.html: #gone",
        "a/index.html: ../#gone",
        "a/index.html: ../b/",
    ]
