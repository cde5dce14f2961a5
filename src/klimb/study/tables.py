"""Episodes as tables: CSV in; CSV, JSON lines and Parquet out."""

from __future__ import annotations

import csv
import itertools
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from klimb._validation import FloatArray, nearest, samples

# What a table says of an episode besides its parameters.
COLUMNS = (
    *("episode", "sample", "iteration", "position", "repeat", "origin", "status", "return", "reason"),
    *("bounds", "seed", "asked", "told", "issued", "update", "extra"),
)
RESERVED = {*COLUMNS, "parameters", "drawn"}

# Rows of a Parquet file that are in memory at a time.
GROUP = 4096

# what a table says of an episode, the parameters executed, and those drawn where they were clipped
Row = tuple[dict[str, Any], FloatArray, FloatArray | None]
Outcome = tuple[str, float | None, str | None, str | None]  # status, return, reason, extra
Writer = Callable[[Path, Sequence[str], Iterable[Row]], None]


def read_csv(path: Path, names: Sequence[str]) -> tuple[FloatArray, list[Outcome]]:
    """Parameters (N, n) and outcomes of the episodes in a table; pending ones are passed over."""
    theta: list[list[float]] = []
    outcomes: list[Outcome] = []
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            table = csv.DictReader(file, strict=True)
            _check_header(path, table.fieldnames or [], names)
            for row in table:
                line = table.line_num
                if None in row or None in row.values():
                    raise ValueError(f"line {line} has more or fewer cells than the first line has names")
                if row.get("status") == "pending":
                    continue
                theta.append([_cell(row[name], name, line) for name in names])
                outcomes.append(_outcome(row, names, line))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a table of comma-separated values: {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}.") from None
    if not theta:
        raise ValueError(f"{path} has no episodes below its first line.")
    return samples("parameters", theta, len(names)), outcomes


def _check_header(path: Path, header: Sequence[str], names: Sequence[str]) -> None:
    if len(set(header)) != len(header):
        raise ValueError("two columns have the same name")
    for name in (*names, "return"):
        if name not in header:
            raise ValueError(
                f"there is no column {name!r}; one per parameter and 'return' are needed, and the first "
                f"line has: {', '.join(map(repr, header[:8])) or 'nothing'}"
            )


def _outcome(row: Mapping[str, str], names: Sequence[str], line: int) -> Outcome:
    extra = {}
    if row.get("extra"):
        try:
            extra = dict(json.loads(row["extra"], parse_constant=_refuse))
        except (ValueError, TypeError, RecursionError):
            raise ValueError(
                f"line {line}: extra must be a JSON object, but it is {row['extra']!r}"
            ) from None
    for name in row.keys() - {*names, *COLUMNS}:
        if row[name]:
            extra[name] = _measurement(row[name])
    text = json.dumps(dict(sorted(extra.items())), ensure_ascii=False) if extra else None
    value = _cell(row["return"], "return", line) if row["return"].strip() else math.nan
    if row.get("status") == "failed" or math.isnan(value) or value == -math.inf:
        return "failed", None, row.get("reason") or "no return in the table", text
    if value == math.inf:
        raise ValueError(f"line {line}: the return is +infinity, which no episode can beat")
    return "done", value, None, text


def _cell(word: str, name: str, line: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise ValueError(f"line {line}: {name} must be a number, but it is {word!r}") from None


def _measurement(word: str) -> float | str:
    """A number if it is a finite one, else the word."""
    try:
        value = float(word)
    except ValueError:
        return word
    return value if math.isfinite(value) else word


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def writer(path: Path) -> Writer:
    """What writes the format that the name of a file asks for."""
    endings: dict[str, Writer] = {
        ".csv": write_csv,
        ".jsonl": write_json_lines,
        ".ndjson": write_json_lines,
        ".parquet": write_parquet,
    }
    ending = path.suffix.lower()
    if ending not in endings:
        raise ValueError(
            f"{path} must end in .csv, .jsonl or .parquet; unknown {ending!r}: {nearest(ending, endings)}"
        )
    if ending == ".parquet":
        _pyarrow()
    if path.is_dir():
        raise ValueError(f"{path} is a directory: name a file in it.")
    return endings[ending]


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` at the end: a file that breaks off replaces nothing."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_csv(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """One line per episode; numbers with all their digits."""
    with _replacing(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow([*COLUMNS, *names])
        for record, theta, _ in rows:
            table.writerow([*{**record, "extra": _json(record["extra"])}.values(), *theta.tolist()])


def write_json_lines(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """One JSON object per line; `drawn` is what was drawn where that was clipped."""
    with _replacing(path) as part, open(part, "w", encoding="utf-8") as file:
        for record, theta, drawn in rows:
            record["parameters"] = dict(zip(names, theta.tolist(), strict=True))
            record["drawn"] = None if drawn is None else dict(zip(names, drawn.tolist(), strict=True))
            file.write(f"{_json(record)}\n")


def write_parquet(path: Path, names: Sequence[str], rows: Iterable[Row]) -> None:
    """One row per episode, columns as in CSV and `drawn`, a list."""
    arrow, parquet = _pyarrow()
    whole = {"episode", "sample", "iteration", "position", "repeat", "issued", "update"}
    kinds = {name: arrow.int64() if name in whole else arrow.string() for name in COLUMNS}
    kinds |= {"return": arrow.float64(), "seed": arrow.uint64()}
    kinds |= {name: arrow.float64() for name in names} | {"drawn": arrow.list_(arrow.float64())}
    schema = arrow.schema(list(kinds.items()))
    with _replacing(path) as part, parquet.ParquetWriter(part, schema) as file:
        for group in _groups(rows):
            columns: dict[str, Any] = {name: [record[name] for record, _, _ in group] for name in COLUMNS}
            columns["extra"] = [_json(extra) for extra in columns["extra"]]
            columns |= dict(zip(names, np.array([theta for _, theta, _ in group]).T, strict=True))
            columns["drawn"] = [None if drawn is None else drawn.tolist() for _, _, drawn in group]
            file.write_table(arrow.table(columns, schema=schema))


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    rows = iter(rows)
    while group := list(itertools.islice(rows, GROUP)):
        yield group


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ImportError("Parquet files need pyarrow: pip install 'klimb[parquet]'") from None
    return pyarrow, pyarrow.parquet
