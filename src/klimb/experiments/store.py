"""Where runs are kept: a small file each while a figure is being made, then one tidy file per figure.

    results/.runs/HASH-SEED.json     a finished run, put in its place in one step
    results/NAME.csv.gz              a figure: one row per run and epoch, sorted, the same bytes every time

Both hold the cells as text, so that a run read back from either is the run that was written. A results file
alone is enough to go on from: .runs is scrap once it exists.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray
from klimb.experiments.plan import Figure, Settings, canonical, hash_of
from klimb.experiments.run import COLUMNS_OF, Table

FORMAT = "klimb-run"
BEFORE, AFTER = ("figure", "variant", "label", "seed"), ("settings", "hash", "klimb")

Key = tuple[str, int]  # hash of the settings, and the seed


class Entry(NamedTuple):
    """A run as a line of a figure."""

    variant: str
    label: str
    hash: str
    table: Table

    def column(self, name: str) -> list[str]:
        """Cells of a column."""
        place = COLUMNS_OF[self.table.settings["kind"]].index(name)
        return [row[place] for row in self.table.rows]

    def numbers(self, name: str) -> FloatArray:
        """A column as numbers, NaN where there is none."""
        return np.array([float(cell) if cell else np.nan for cell in self.column(name)])


class DamagedError(ValueError):
    """A file that is not what it should be."""


def run_path(results: Path, key: Key) -> Path:
    """The file of a run."""
    return results / ".runs" / f"{key[0]}-{key[1]}.json"


def save_run(results: Path, table: Table) -> None:
    """Keep a finished run."""
    path = run_path(results, (hash_of(table.settings), table.seed))
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"format": FORMAT, **table._asdict()}
    _replace(path, json.dumps(content, separators=(",", ":")).encode())


def load_run(results: Path, settings: Settings, seed: int) -> Table | None:
    """Return a finished run, or None; raises :class:`DamagedError`."""
    path = run_path(results, (hash_of(settings), seed))
    try:
        content = json.loads(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("another format")
        table = Table(**content)
        if canonical(table.settings) != canonical(settings) or table.seed != seed:
            raise ValueError("the settings in it are not those of its name")
        width = len(COLUMNS_OF[settings["kind"]])
        if not table.rows or any(len(row) != width for row in table.rows):
            raise ValueError("rows are missing or of the wrong length")
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is damaged: {error}.") from None
    return table


def results_path(results: Path, name: str) -> Path:
    """The file of a figure."""
    return results / f"{name}.csv.gz"


def write_results(path: Path, figure: str, entries: Iterable[Entry]) -> None:
    """Write a figure's file: sorted, no time stamp."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for index, entry in enumerate(sorted(entries, key=lambda entry: (entry.variant, entry.table.seed))):
        table = entry.table
        if index == 0:
            writer.writerow([*BEFORE, *COLUMNS_OF[table.settings["kind"]], *AFTER])
        before = [figure, entry.variant, entry.label, table.seed]
        after = [canonical(table.settings), entry.hash, table.version]
        writer.writerows([*before, *row, *after] for row in table.rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    _replace(path, gzip.compress(text.getvalue().encode(), compresslevel=9, mtime=0))


def read_results(path: Path) -> list[Entry]:
    """Read a figure's file.

    Raises
    ------
    FileNotFoundError
        If there is none.
    DamagedError
        If it is cut off, changed, or something else altogether.
    """
    try:
        text = gzip.decompress(path.read_bytes()).decode()
        lines = csv.reader(io.StringIO(text))
        header = next(lines)
        kinds = [kind for kind, columns in COLUMNS_OF.items() if header == [*BEFORE, *columns, *AFTER]]
        if not kinds:
            raise ValueError("its columns are not those that klimb reproduce writes")
        entries = []
        for (variant, label, seed), group in groupby(lines, key=lambda row: (row[1], row[2], int(row[3]))):
            rows = list(group)
            if any(len(row) != len(header) for row in rows):
                raise ValueError("a row is cut off")
            settings, digest, version = rows[0][-3:]
            resolved = json.loads(settings)
            if hash_of(resolved) != digest or any(row[-2] != digest for row in rows):
                raise ValueError(f"the settings of {variant} do not have the hash that stands beside them")
            cells = [row[len(BEFORE) : -len(AFTER)] for row in rows]
            entries.append(Entry(variant, label, digest, Table(resolved, seed, version, cells)))
    except FileNotFoundError:
        raise
    except (EOFError, OSError, StopIteration, ValueError, IndexError, zlib.error) as error:
        reason = str(error) or "it is empty"
        raise DamagedError(
            f"{path} is damaged, or no results file: {reason}. Move it away; klimb reproduce writes it again "
            "from the runs beside it and does what is missing."
        ) from None
    return entries


def check_current(figure: Figure, path: Path, entries: Iterable[Entry]) -> None:
    """Raise a ValueError if results were made with other settings than the figure has."""
    current = {variant.name: figure.resolve(variant) for variant in figure.variants}
    hashes = {name: hash_of(settings) for name, settings in current.items()}
    for entry in entries:
        if entry.variant not in current:
            raise ValueError(
                f"{path} holds a variant {entry.variant!r} that {figure.name} does not have: it was "
                "made with another version of this figure. Move it away, or choose another --results."
            )
        if entry.hash != hashes[entry.variant]:
            difference = _difference(entry.table.settings, current[entry.variant])
            raise ValueError(
                f"{path} was made with other settings: {entry.variant} has {difference}. Move it away, "
                "or choose another --results."
            )


def _difference(there: Settings, here: Settings, prefix: str = "") -> str:
    """The first setting that differs, in words."""
    for name in sorted({*there, *here}):
        old, new = there.get(name, "none"), here.get(name, "none")
        if isinstance(old, dict) and isinstance(new, dict) and old != new:
            return _difference(old, new, f"{prefix}{name}.")
        if canonical({"": old}) != canonical({"": new}):
            return f"{prefix}{name} = {old} there and {new} here"
    return "no difference"


def _replace(path: Path, content: bytes) -> None:
    """Write a file in one step: whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
