"""Where a file of the repository is on the site, and links between such files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable

# Pages that are not in docs/.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "measurements/method.md",
}
_LINK = re.compile(r"(!?)\[([^]]*)\]\(([^)\s]*)\)")
# GitHub recognizes a list directly after a paragraph; Python's Markdown does not.
_LIST = re.compile(r"^((?![-*|#> ]|\d+\. ).+)\n((?:[-*]|1\.) )", re.MULTILINE)
_FENCE = re.compile(r"(^```.*?^```[^\n]*\n?)", re.MULTILINE | re.DOTALL)


def address(repository: str) -> str:
    """Return the address of the site of a repository on GitHub.

    Args:
        repository: The owner and the name, with a slash between them.

    Returns:
        The address on GitHub Pages.

    Example:
        >>> address("Owner/fastnet")
        'https://owner.github.io/fastnet/'
    """
    owner, _, name = repository.partition("/")
    return f"https://{owner.lower()}.github.io/{name}/"


def on_site(file: str) -> str | None:
    """Return the path of a repository file on the site.

    Args:
        file: Its path from the repository's root.

    Returns:
        Its path from the site's root, as MkDocs names sources, or None if the site lacks it.

    Example:
        >>> on_site("docs/threads.md"), on_site("bench/results/fit.md"), on_site("setup.py")
        ('threads.md', 'measurements/fit.md', None)
    """
    if file in PAGES:
        return PAGES[file]
    for folder, place in (("docs/", ""), ("bench/results/", "measurements/")):
        if file.startswith(folder):
            return place + file.removeprefix(folder)
    return None


def in_repository(page: str) -> str:
    """Return the file of the repository that a page of the site is made from.

    Example:
        >>> in_repository("index.md"), in_repository("threads.md")
        ('README.md', 'docs/threads.md')
    """
    for file, place in PAGES.items():
        if place == page:
            return file
    if page.startswith("measurements/"):
        return "bench/results/" + page.removeprefix("measurements/")
    return f"docs/{page}"


def relinked(text: str, page: str, source_of: Callable[[str], str | None]) -> str:
    """Rewrite the links of a page to the paths of their files on the site.

    Args:
        text: The page's Markdown, with links as they are in the repository.
        page: Where the page is on the site.
        source_of: Returns a URL for a file that the site lacks, or None: then there is no link.

    Returns:
        The Markdown for the site.
    """
    folder = posixpath.dirname(in_repository(page))

    def relink(found: re.Match[str]) -> str:
        image, words, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found[0]
        path, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(folder, path))
        place = on_site(file)
        if place is not None:
            there = posixpath.relpath(place, posixpath.dirname(page) or ".")
            return f"{image}[{words}]({there}{'#' * bool(anchor)}{anchor})"
        url = source_of(file)
        return words if url is None else f"[{words}]({url})"

    parts = _FENCE.split(text)
    # Fenced blocks are at odd indices.
    parts[::2] = [_LIST.sub(r"\1\n\n\2", _LINK.sub(relink, part)) for part in parts[::2]]
    return "".join(parts)
