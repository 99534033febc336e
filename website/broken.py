"""Links of a built site that lead nowhere."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name in ("href", "src"):
                self.links.append(value)
            elif name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)


def anchors(page: Path) -> set[str]:
    """Return the anchors of an HTML file.

    Args:
        page: The file.
    """
    return _read(page).anchors


def broken(site: Path) -> Iterator[str]:
    """Yield a line for each link to a file or an anchor that the site lacks.

    Links to other sites are not followed, and the page for what is not found is left out: its
    links are those of a server's root.

    Args:
        site: The folder that the site was built into.

    Yields:
        The page and the link.
    """
    pages = {path: _read(path) for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            there = target.is_file()
            anchor = unquote(parts.fragment)
            # Material's own, for the top of a page
            if there and anchor and anchor != "__skip" and target.suffix == ".html":
                there = anchor in pages[target].anchors
            if not there:
                yield f"{path.relative_to(site)}: {link}"


def _read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page
