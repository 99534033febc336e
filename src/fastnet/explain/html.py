"""An explanation for a notebook: the picture, what is worth a look, and the text to unfold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastnet.explain.svg import draw, to_xml

if TYPE_CHECKING:
    from fastnet.explain.explanation import Explanation

__all__ = ["show"]


def show(explanation: Explanation) -> str:
    """Show an explanation.

    Args:
        explanation: The explanation.

    Returns:
        HTML that is well-formed XML too.
    """
    parts = [f'<div style="overflow-x: auto">{draw(explanation)}</div>']
    if explanation.error is not None:
        parts.append(f"<p><b>An opening would fail with {to_xml(explanation.error)}</b></p>")
    if explanation.findings:
        items = "".join(f"<li>{to_xml(one.text)}</li>" for one in explanation.findings)
        parts.append(f"<p><b>Findings</b></p><ul>{items}</ul>")
    parts.append(
        f"<details><summary>All of it, as text</summary><pre>{to_xml(str(explanation))}</pre>"
        "</details>"
    )
    return f"<div>{''.join(parts)}</div>"
