"""What a study is created with: checked once, stored, and read back."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, is_number, numbers, one_of, whole
from klimb.study import tables
from klimb.study.file import File

Bounds = tuple[FloatArray, FloatArray]

LARGEST_ID = 2**63 - 1  # SQLite's largest whole number
MOST = 10**9  # episodes at a time: a slip of the finger


@dataclass(frozen=True, eq=False)
class Settings:
    """What a study was created with and never changes.

    Attributes
    ----------
    uid
        Tells one study from all others.
    created
        When, in UTC.
    algorithm
        Its name.
    learner
        How it learns: "optimizer" (one of klimb's own), "conversation" (a baseline by ask and tell) or
        "agent" (a baseline that acts step by step).
    measure
        Name of a measure of effectiveness of the user's own, or None.
    n_parameters, names
        The parameters.
    batch
        Samples per update.
    repeats
        Episodes per sample.
    seed
        What all samples derive from.
    outside
        "resample" or "clip".
    run
        What a simulated run needs to go on, or None.
    low, high : (n,) or None
        Bounds.
    """

    uid: str
    created: str
    algorithm: str
    learner: str
    measure: str | None
    n_parameters: int
    batch: int
    repeats: int
    seed: int
    outside: str
    names: tuple[str, ...]
    run: dict[str, Any] | None
    low: FloatArray | None
    high: FloatArray | None

    @property
    def bounds(self) -> Bounds | None:
        """Low and high, where there are bounds."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def settings_row(
    algorithm: Any,
    learner: str,
    n_parameters: int,
    seed: int,
    names: Sequence[str] | None,
    bounds: Bounds | None,
    outside: str,
    batch: int,
    repeats: int,
    run: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The row of a new study."""
    measure = getattr(algorithm, "effectiveness", None)
    return {
        "one": 1,
        "uid": uuid.uuid4().hex,
        "created": now(),
        "klimb": version("klimb"),
        "algorithm": algorithm.name,
        "learner": learner,
        "measure": getattr(measure, "__qualname__", "?") if callable(measure) else None,
        "n_parameters": n_parameters,
        "batch": batch,
        "repeats": whole("repeats", repeats, 1, MOST),
        "seed": str(seed),
        "outside": one_of("outside", outside, ("resample", "clip")),
        "names": None if names is None else json.dumps(names),
        "run": None if run is None else strict_json("run", run),
        "low": None if bounds is None else bounds[0].tobytes(),
        "high": None if bounds is None else bounds[1].tobytes(),
    }


def read_settings(file: File) -> Settings:
    """The settings of an open study."""
    columns = [field.name for field in fields(Settings)]
    with file.reading():
        row = dict(zip(columns, file.one(f"SELECT {', '.join(columns)} FROM study"), strict=True))
    with file.decoding():
        n = whole("n_parameters", row["n_parameters"], 1)
        for name in ("low", "high"):
            if row[name] is not None:
                row[name] = np.frombuffer(row[name], dtype="<f8").astype(np.float64)
                if row[name].shape != (n,) or np.isnan(row[name]).any():
                    raise ValueError(f"{name} is not {n} numbers")
        for name in ("batch", "repeats"):
            whole(name, row[name], 1)
        for name in ("uid", "created", "algorithm", "learner"):
            row[name] = str(row[name])
        names = row["names"]
        row["names"] = tuple(default_names(n) if names is None else check_names(json.loads(names), n))
        row["seed"] = int(row["seed"])
        row["run"] = None if row["run"] is None else dict(json.loads(row["run"]))
        return Settings(**row)


def now() -> str:
    """The time in UTC; such texts sort by time."""
    return as_text(datetime.now(UTC))


def as_text(moment: datetime) -> str:
    """A time in UTC as ISO 8601."""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def count_parameters(**given: Any) -> int:
    """The number of parameters, from whatever has one entry per parameter."""
    try:
        sizes = {name: len(value) for name, value in given.items() if np.ndim(value)}
    except (TypeError, ValueError) as error:  # ragged lists
        raise ValueError(f"mean, std, low, high and covariance must be numbers: {error}.") from None
    if not sizes:
        raise ValueError("the number of parameters is unknown: give names, or a mean with one number each.")
    (name, n), *others = sizes.items()
    for other, size in others:
        if size != n:
            raise ValueError(f"{name} has {n} entries, but {other} has {size}: one per parameter is needed.")
    if n < 1:
        raise ValueError(f"{name} is empty: at least one parameter is needed.")
    return n


def default_names(n: int) -> list[str]:
    """p0, p1, ..."""
    return [f"p{j}" for j in range(n)]


def check_names(names: Sequence[str], n: int) -> list[str]:
    """Names that can head the columns of a table."""
    if isinstance(names, str) or len(names) != n:
        raise ValueError(f"names must be {n} texts, one per parameter, but {names!r} came.")
    for name in names:
        if not isinstance(name, str) or not name or name != name.strip() or not name.isprintable():
            raise ValueError(f"a parameter's name must be a text without spaces around it, not {name!r}.")
        if name in tables.RESERVED:
            raise ValueError(f"no parameter can be called {name!r}: that is a column of exported tables.")
    if len(set(names)) < n:
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"two parameters are called {twice!r}: names must differ.")
    return list(names)


def check_bounds(low: ArrayLike | None, high: ArrayLike | None, n: int) -> Bounds | None:
    """Both bounds as (n,) arrays; infinite where only the other one was given."""
    if low is None and high is None:
        return None
    made = []
    for name, value, default in (("low", low, -math.inf), ("high", high, math.inf)):
        array = numbers(name, default if value is None else value)
        if array.shape not in ((), (n,)) or np.isnan(array).any():
            raise ValueError(f"{name} must be one number or {n} of them, and no NaN, but {value!r} came.")
        made.append(np.broadcast_to(array, (n,)).astype(np.float64))
    bottom, top = made
    if not (bottom < top).all():
        j = int(np.flatnonzero(~(bottom < top))[0])
        raise ValueError(f"low must be below high, but for parameter {j} they are {bottom[j]} and {top[j]}.")
    return bottom, top


def check_start(
    mean: ArrayLike | None, std: ArrayLike | None, covariance: ArrayLike | None, bounds: Bounds | None, n: int
) -> tuple[FloatArray, ArrayLike | None]:
    """Mean and std to start with: what is not given follows from bounds on both sides."""
    way_out = "is needed: only finite bounds on both sides of every parameter replace it."
    finite = bounds is not None and bool(np.isfinite(bounds).all())
    if mean is None:
        if bounds is None or not finite:
            raise ValueError(f"mean {way_out}")
        mean = bounds[0] / 2 + bounds[1] / 2
    if std is None and covariance is None:
        if bounds is None or not finite:
            raise ValueError(f"std {way_out}")
        std = bounds[1] / 4 - bounds[0] / 4
    mean = numbers("mean", mean)
    return np.full(n, mean) if mean.ndim == 0 else mean, std


def check_inside(mean: FloatArray, bounds: Bounds | None, names: Sequence[str]) -> None:
    """The search must not begin outside the bounds."""
    if bounds is None:
        return
    low, high = bounds
    wrong = np.flatnonzero((mean < low) | (mean > high))
    if wrong.size:
        j = int(wrong[0])
        raise ValueError(
            f"mean must lie within the bounds, but that of {names[j]} is {mean[j]}, not from {low[j]} to "
            f"{high[j]}."
        )


def check_return(value: float) -> float:
    """A return that can be learned from."""
    if not is_number(value) or not math.isfinite(value):
        raise ValueError(
            f"the return must be a finite number, but {value!r} came; an episode without one has failed: use "
            'fail(), or on the command line --failed "what happened".'
        )
    return float(value)


def check_text(name: str, text: str) -> str:
    """Text that a file can hold."""
    try:
        text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise ValueError(f"{name} must be a text, but {text!r} came.") from None
    return text


def strict_json(name: str, value: Mapping[str, Any]) -> str:
    """JSON text of an object, without NaN and infinity."""
    try:
        if not isinstance(value, Mapping):
            raise ValueError(f"{value!r} came")
        text = json.dumps(dict(value), allow_nan=False, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f'{name} must be a JSON object such as {{"energy": 3.2}}, of finite numbers and text: {error}.'
        ) from None
    return check_text(name, text)
