"""MkDocs hooks: add generated pages, rewrite links, and check the site."""

from __future__ import annotations

import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import plotly
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# MkDocs loads this file by its path
sys.path.insert(0, str(ROOT))

from website import broken, places, reference, report  # noqa: E402

_log = logging.getLogger("mkdocs.hooks.fastnet")
_PLOTLY = "assets/plotly.min.js"

_reference = {page.path: page for page in reference.pages()}
_measurements = {page.path: page for page in report.pages()}
_home = report.home((ROOT / "README.md").read_text(encoding="utf-8"))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version, link the repository, and name the added pages in the navigation."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"', pyproject, re.MULTILINE)
    config.site_name += f" {version[1]}" if version else ""
    if not config.repo_url and "GITHUB_REPOSITORY" in os.environ:
        config.repo_url = f"https://github.com/{os.environ['GITHUB_REPOSITORY']}"
        config.repo_name = os.environ["GITHUB_REPOSITORY"]
    if not config.site_url and config.repo_name:
        # Without its address the site has an empty sitemap.
        config.site_url = places.address(config.repo_name)
    added: dict[str, list[dict[str, str]]] = {
        "API reference": [{page.module: path} for path, page in _reference.items()],
        "Measurements": [
            {"How it is measured": places.PAGES["bench/README.md"]},
            *({page.title: path} for path, page in _measurements.items()),
        ],
    }
    for entry in config.nav or []:
        for title in entry:
            entry[title] = added.get(title, entry[title])
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are generated from other files, and their images."""

    def add(path: str, **source: Any) -> None:
        files.append(File.generated(config, path, **source))

    for file, place in places.PAGES.items():
        if file != "README.md":
            add(place, content=(ROOT / file).read_text(encoding="utf-8"))
    add(places.PAGES["README.md"], content=_home.text)
    for path, page in _reference.items():
        add(path, content=page.markdown())
    for path, measured in _measurements.items():
        add(path, content=measured.text)
    for picture in report.RESULTS.glob("*.png"):
        add(f"measurements/{picture.name}", abs_src_path=str(picture))
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    add(_PLOTLY, abs_src_path=str(script))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where their files are on the site."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]  # of one page

    def source_of(file: str) -> str | None:
        return f"{config.repo_url.rstrip('/')}/blob/main/{file}" if config.repo_url else None

    return places.relinked(markdown, page.file.src_uri, source_of)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in a page's charts, and what draws them, which no other page loads."""
    measured = _home if page.is_homepage else _measurements.get(page.file.src_uri)
    if measured is None or not measured.charts:
        return html
    script = posixpath.relpath(_PLOTLY, page.url or ".")
    return f'<script src="{script}"></script>{report.charts_in(html, measured.charts)}'


def on_post_build(*, config: MkDocsConfig) -> None:
    """Warn of each link that leads nowhere and of each public name that was left out."""
    site = Path(config.site_dir)
    for line in broken.broken(site):
        _log.warning("A link leads nowhere: %s", line)
    for path, page in _reference.items():
        there = broken.anchors(site / path.removesuffix(".md") / "index.html")
        for anchor in page.anchors:
            if anchor not in there:
                _log.warning("The reference lacks %s, which %s exports", anchor, page.module)
