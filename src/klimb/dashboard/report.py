"""The page with its data in it: one HTML file that needs nothing else, to send or to keep."""

from __future__ import annotations

import base64
import hashlib
import os
import uuid
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

from klimb._command import strict_json
from klimb.dashboard.data import Follower, shared_room
from klimb.dashboard.folder import FILMS, Folder, films, find_studies
from klimb.study import StudyError
from klimb.study.settings import as_text

LARGEST_FILM = 2 * 2**20  # bytes; larger ones are named only

Watch = Callable[[list[Follower]], Iterable[Follower]]

SCRIPTS = ("plots.js", "page.js")


def page_file(name: str) -> str:
    """The text of a file of the page."""
    return files("klimb.dashboard").joinpath("page", name).read_text(encoding="utf-8")


def write_report(source: Path, output: Path, watch: Watch = list) -> dict[str, int]:
    """Write all that a page shows of the studies at `source` into one file; how many studies, and bytes.

    `watch` is handed the studies and hands them on one by one, to show how far it is.
    """
    count = 1 if not source.is_dir() else len(find_studies(source))
    folder = Folder(source, shared_room(count))
    if not folder.followers():
        raise ValueError(f"{source} has no studies in it; make one with: klimb study create FILE")
    text = report_page(report_data(folder, watch))
    part = output.with_name(f"{output.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, output)
    finally:
        part.unlink(missing_ok=True)
    return {"studies": len(folder.followers()), "bytes": len(text.encode())}


def report_data(folder: Folder, watch: Watch = list) -> dict[str, Any]:
    """What the server would answer to each question of the page."""
    for follower in watch(list(folder.followers().values())):
        with suppress(StudyError, ValueError, OSError):  # the overview names it
            follower.refresh()
    overview = folder.overview()
    readable = {line["key"] for line in overview["studies"] if "error" not in line}
    errors = [line["error"] for line in overview["studies"] if "error" in line]
    if not readable:
        raise StudyError(errors[0])
    studies = {}
    for key, follower in folder.followers().items():
        if key in readable:
            studies[key] = follower.data() | {"films": [_film(path) for path in films(follower.path)]}
    return {"made": as_text(datetime.now(UTC)), "overview": overview, "studies": studies}


def _film(path: Path) -> dict[str, Any]:
    kind = FILMS[path.suffix.lower()]
    if path.stat().st_size > LARGEST_FILM:
        return {"name": path.name, "kind": kind, "source": None}
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
    return {"name": path.name, "kind": kind, "source": source}


def report_page(data: dict[str, Any]) -> str:
    """The page, its style, scripts and data in one; nothing else may run or load in it."""
    style = page_file("page.css")
    script = "\n".join(page_file(name) for name in SCRIPTS)
    # "<" cannot end the element, nor begin a comment, if it is not there
    embedded = strict_json(data).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; media-src data:; base-uri 'none'; form-action 'none'"
    )
    page = page_file("page.html")
    for old, new in (
        ("<!-- policy -->", f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        ('<link rel="stylesheet" href="page/page.css">', f"<style>{style}</style>"),
        (
            '<script src="page/plots.js"></script>',
            f'<script type="application/json" id="data">{embedded}</script>',
        ),
        ('<script src="page/page.js"></script>', f"<script>{script}</script>"),
    ):
        before, found, after = page.partition(old)
        assert found, old
        page = before + new + after
    return page


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
