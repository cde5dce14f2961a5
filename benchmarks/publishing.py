"""The part of a page of the documentation that a benchmark writes."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def publish(page: Path, command: str, text: str) -> None:
    """Put `text` between the marks of a page that say it is made by the command."""
    begin, end = (f"<!-- made by {command}: {place} -->" for place in ("begin", "end"))
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page.name} has no place for this: {begin} and, below it, {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
