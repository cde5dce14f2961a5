"""From a study file to what a page shows: plain numbers and words, and only what is new.

A :class:`Follower` opens the file, reads what has come since the last time and closes it again, so that a
program that runs the study meanwhile never waits for a page. What a page is told is bounded, however long the
study: points are thinned, updates that share a column of the heat map are averaged.

Arrays travel as base64 of little-endian numbers.
"""

from __future__ import annotations

import base64
import math
import re
import secrets
import threading
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb.study import Study
from klimb.study.file import File, log_of
from klimb.study.settings import Settings, as_text, read_settings

Vector = NDArray[np.float32]

# What a page can show, and a report can carry; see Room.
MOST_POINTS, MOST_UPDATES, MOST_COLUMNS = 20_000, 4096, 128
MOST_ROWS = 512  # parameters of a heat map
MOST_CELLS = 2**18  # of all columns together, in memory
MOST_NUMBERS = 2**24  # that are read of vectors at a time; of more updates than that only some are
MOST_LISTED = 200  # pending episodes
MOST_JUDGEMENTS = 512  # of the mean policy, sent whole whenever there is a new one
LATEST_FAILURES = 20

# Effectiveness of one batch is noisy: the ranking is the average over so many updates.
WITNESSES = 20

# Tasks whose policy is a ProMP; the others need not be made, and their simulators loaded, to know that.
MOVEMENTS = ("air-hockey", "ball-stopping")

# A file that was changed less than this many seconds ago may change again without a new time stamp.
UNSETTLED = 1.0

CURVE = (
    *("episodes", "mean_return", "best_return", "kl", "entropy", "effective_sample_size"),
    *("n_used", "n_failed"),
)


@dataclass(frozen=True)
class Room:
    """How much of a study a page holds: points, updates of the curve, columns of the heat map."""

    points: int = MOST_POINTS
    updates: int = MOST_UPDATES
    columns: int = MOST_COLUMNS


def shared_room(studies: int) -> Room:
    """The room of each of so many studies in one file."""
    share = max(1, studies)
    return Room(
        max(400, MOST_POINTS // share), max(200, MOST_UPDATES // share), max(8, MOST_COLUMNS // share)
    )


@dataclass(eq=False)
class Column:
    """Some updates in a row, as a column of the heat map.

    Attributes
    ----------
    number
        Of the last of them.
    updates, measured
        How many there are, and how many of them say what matters.
    effectiveness, marked : (n,)
        Sums over the updates.
    mean, std : (n,)
        After the last update.
    """

    number: int
    updates: int
    measured: int
    effectiveness: Vector
    marked: Vector
    mean: Vector
    std: Vector

    def add(self, other: Column) -> None:
        """Take in what comes next."""
        self.number, self.mean, self.std = other.number, other.mean, other.std
        self.updates += other.updates
        self.measured += other.measured
        self.effectiveness = self.effectiveness + other.effectiveness
        self.marked = self.marked + other.marked


class Follower:
    """A study, followed: :meth:`refresh` reads what is new, :meth:`data` hands it to a page.

    Parameters
    ----------
    path
        The file.
    key
        What pages call the study.
    room
        How much of it they get.
    """

    def __init__(self, path: Path, key: str, room: Room | None = None) -> None:
        self.path, self.key, self.room = path, key, room or Room()
        self.lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """What the study was created with, once it was read."""
        if self._settings is None:
            raise ValueError("refresh comes first.")
        return self._settings

    # reading

    def refresh(self, *, vectors: bool = True) -> None:
        """Read what is new; quick if that is nothing. The heat map's vectors only where they are wanted."""
        seen = _signature(self.path)
        if seen is not None and seen == self._seen and (not vectors or self._vectors == self.updates):
            return
        with closing(File(self.path)) as file:
            file.all("PRAGMA query_only = ON")
            settings = read_settings(file)
            if self._settings is None or settings.uid != self._settings.uid:
                self._begin(settings)
            before = self._standing
            try:
                with file.reading(), file.decoding():
                    self._read_episodes(file)
                    self._read_updates(file)
                    if vectors:
                        self._read_vectors(file)
            except BaseException:
                self._settings = None  # half read: begin anew next time
                raise
            if before != self._standing:
                self.changes += 1
        self._seen = seen

    @property
    def _standing(self) -> tuple[Any, ...]:
        """What is new when it differs."""
        return self.done, self.failed, self.updates, self.settled, self.pending, len(self._mean_policy)

    def _begin(self, settings: Settings) -> None:
        """Forget everything: the file is a new one."""
        self._settings = settings
        self._token = secrets.token_hex(4)
        self.algorithm = _algorithm_settings(self.path)
        self.grid = joints_and_time(settings)
        self.changes = 0  # how often something new was found
        self.done = self.failed = self.settled = 0
        self.best: tuple[Any, ...] | None = None  # return, and the episode
        self.pending: list[tuple[int, str | None, int]] = []
        self.failures: deque[tuple[int, str]] = deque(maxlen=LATEST_FAILURES)
        self._last = 0  # the highest number of an episode
        self._open: set[int] = set()  # pending ones
        self._points = array("d")  # episode, return (NaN if it failed), episode, return, ...
        self._thinned = 1  # only every so manieth episode is kept
        self.updates = 0
        self._curve: list[tuple[float, ...]] = []  # number, then CURVE
        self._mean_policy: list[tuple[int, float, float]] = []  # number of an update, episodes, return
        self._sparse = 1  # only every so manieth update is kept
        self._vectors = 0  # how many updates the columns are of
        self._columns: list[Column] = []
        self._width = 1  # updates per column
        self._witnesses: deque[Vector] = deque(maxlen=WITNESSES)

    def _read_episodes(self, file: File) -> None:
        columns = "SELECT id, sample, status, return, reason FROM trials WHERE"
        rows: list[tuple[Any, ...]] = []
        pending = file.all(
            "SELECT id, asked, issued FROM trials WHERE status = 'pending' ORDER BY asked IS NULL, asked, id"
        )
        still = {number for number, _, _ in pending}
        ended = sorted(self._open - still)
        for start in range(0, len(ended), 500):
            some = ended[start : start + 500]
            rows += file.all(f"{columns} id IN ({', '.join('?' * len(some))}) ORDER BY id", *some)
        rows += file.all(f"{columns} id > ? ORDER BY id", self._last)
        for number, sample, status, value, reason in rows:
            self._last = max(self._last, number)
            if status == "done":
                self.done += 1
                self._add_point(number, float(value))
                if self.best is None or (value, -sample) > (self.best[0], -self.best[1]):
                    self.best = (float(value), int(sample))
            elif status == "failed":
                self.failed += 1
                self._add_point(number, math.nan)
                self.failures.append((number, str(reason)))
        if self.settings.repeats > 1 and self.done:  # the best sample is that of the best mean
            self.best = file.one(
                "SELECT avg(return) AS mean, sample FROM trials WHERE status = 'done' GROUP BY sample "
                "ORDER BY mean DESC, sample LIMIT 1"
            )
        self._open = still
        self.pending = [(int(number), since, int(issued)) for number, since, issued in pending]
        (self.settled,) = file.one(
            "SELECT count(*) FROM (SELECT 1 FROM trials WHERE used IS NULL GROUP BY sample "
            "HAVING sum(status = 'pending') = 0)"
        )

    def _add_point(self, number: int, value: float) -> None:
        if number % self._thinned == 0:
            self._points.extend((number, value))
        if len(self._points) > 2 * self.room.points:
            self._thinned *= 2
            points = self.points
            self._points = array("d", points[points[:, 0] % self._thinned == 0].ravel())

    def _read_updates(self, file: File) -> None:
        query = f"SELECT number, {', '.join(CURVE)} FROM updates WHERE number > ? ORDER BY number"
        for row in file.all(query, self.updates):
            self.updates = int(row[0])
            if self.updates % self._sparse == 0:
                self._curve.append(tuple(math.nan if value is None else float(value) for value in row))
            if len(self._curve) > self.room.updates:
                self._sparse *= 2
                self._curve = [row for row in self._curve if row[0] % self._sparse == 0]

        # a judgement comes a moment after its update
        query = (
            "SELECT mean_policy.number, episodes, return FROM mean_policy JOIN updates USING (number) "
            "WHERE mean_policy.number > ? ORDER BY mean_policy.number"
        )
        self._mean_policy += file.all(query, self._mean_policy[-1][0] if self._mean_policy else 0)

    def _read_vectors(self, file: File) -> None:
        every = max(1, math.ceil((self.updates - self._vectors) * self.settings.n_parameters / MOST_NUMBERS))
        query = (
            "SELECT number, mean, std, effectiveness, selected FROM updates "
            "WHERE number > ? AND (number % ? = 0 OR number = ?) ORDER BY number"
        )
        for number, mean, std, *measured in file.rows(query, self._vectors, every, self.updates):
            if mean is not None and std is not None:
                self._add_column(int(number), mean, std, *measured)
        self._vectors = self.updates

    def _add_column(
        self, number: int, mean: bytes, std: bytes, effectiveness: bytes | None, selected: bytes | None
    ) -> None:
        n = self.settings.n_parameters
        column = Column(number, 1, 0, _zeros(n), _zeros(n), _floats(mean, n), _floats(std, n))
        if effectiveness is not None:
            measured = np.frombuffer(effectiveness, dtype="<f8")
            column.measured, column.effectiveness = 1, _floats(effectiveness, n)
            self._witnesses.append(column.effectiveness)
            column.marked[largest(measured, len(selected or b"") // 8)] = 1
        if self._columns and self._columns[-1].updates < self._width:
            self._columns[-1].add(column)
        else:
            self._columns.append(column)
        if len(self._columns) > max(8, min(self.room.columns, MOST_CELLS // n)):
            self._width *= 2
            pairs, self._columns = self._columns, []
            for first, second in zip(pairs[::2], [*pairs[1::2], None], strict=False):
                if second is not None:
                    first.add(second)
                self._columns.append(first)

    # telling

    @property
    def points(self) -> NDArray[np.float64]:
        """Episodes that have ended and their returns, NaN of failed ones, (k, 2)."""
        return np.array(self._points).reshape(-1, 2)

    @property
    def curve(self) -> NDArray[np.float64]:
        """The learning curve: number of the update, then the columns of CURVE, (k, 1 + c)."""
        return np.array(self._curve, dtype=np.float64).reshape(-1, 1 + len(CURVE))

    def recent_effectiveness(self) -> Vector | None:
        """How much each parameter matters, averaged over the last updates; None where it is not measured."""
        return np.mean(self._witnesses, axis=0, dtype=np.float32) if self._witnesses else None

    def summary(self) -> dict[str, Any]:
        """How the study stands, in a few numbers."""
        settings, run = self.settings, self.settings.run or {}
        return {
            "key": self.key,
            "algorithm": settings.algorithm,
            "task": str(run["task"]) if "task" in run else None,
            "seed": str(settings.seed),
            "n_parameters": settings.n_parameters,
            "batch": settings.batch,
            "done": self.done,
            "failed": self.failed,
            "pending": len(self.pending),
            "settled": self.settled,
            "updates": self.updates,
            "best_return": None if self.best is None else self.best[0],
            "best_episode": None if self.best is None else self.best[1],
            "mean_return": self._curve[-1][1 + CURVE.index("mean_return")] if self._curve else None,
            "changed": _changed(self.path),
        }

    def data(self, epoch: str = "", points: int = 0, updates: int = 0, changes: int = -1) -> dict[str, Any]:
        """What a page needs that has seen so many points and updates of this epoch, or everything.

        An epoch ends where what was handed out before is no longer what it was: another file, or thinned
        further.
        """
        rows = self._rows()
        # the parameters that are shown may change from look to look only where there are very many of them
        shown = zlib.crc32(rows.tobytes()) if rows.size < self.settings.n_parameters else 0
        current = f"{self._token}.{self._thinned}.{self._sparse}.{self._width}.{shown:x}"
        if epoch != current or points > len(self._points) // 2 or updates > self.updates:
            points = updates = 0
            changes = -1
        told: dict[str, Any] = {"epoch": current, "changes": self.changes, "now": as_text(datetime.now(UTC))}
        if changes == self.changes:
            return told
        if epoch != current:
            told["settings"] = self._settings_data(rows)
        told["summary"] = self.summary()
        told["pending"] = [
            {"episode": number, "since": since, "issued": issued}
            for number, since, issued in self.pending[:MOST_LISTED]
        ]
        told["failures"] = [
            {"episode": number, "reason": reason} for number, reason in reversed(self.failures)
        ]
        told["notes"] = self._notes()
        recent = self.recent_effectiveness()
        told["recent"] = None if recent is None else _packed(recent[rows], "<f4")
        fresh = self.points[points:]
        told["points"] = {
            "from": points,
            "number": _packed(fresh[:, 0], "<u4"),
            "value": _packed(fresh[:, 1], "<f8"),
        }
        curve = self.curve
        start = int(np.searchsorted(curve[:, 0], updates, side="right"))
        told["curve"] = {
            "from": start,
            **{name: _packed(curve[start:, place], "<f8") for place, name in enumerate(("number", *CURVE))},
        }
        told["mean_policy"] = self._mean_policy_data()
        told["columns"] = self._columns_data(rows, updates)
        return told

    def _mean_policy_data(self) -> dict[str, str]:
        """Episodes and returns of the mean policy: all of them, or some, and the latest."""
        every = math.ceil(len(self._mean_policy) / MOST_JUDGEMENTS) or 1
        some = self._mean_policy[::-1][::every][::-1]
        kept = np.array(some, dtype=np.float64).reshape(-1, 3)
        return {"episodes": _packed(kept[:, 1], "<f8"), "value": _packed(kept[:, 2], "<f8")}

    def _rows(self) -> NDArray[np.int64]:
        """The parameters to show, ascending: all, or those that matter most."""
        n, recent = self.settings.n_parameters, self.recent_effectiveness()
        if n <= MOST_ROWS or recent is None:
            return np.arange(min(n, MOST_ROWS))
        return np.sort(largest(recent, MOST_ROWS))

    def _settings_data(self, rows: NDArray[np.int64]) -> dict[str, Any]:
        settings = self.settings
        bounds = settings.bounds
        return {
            "names": [settings.names[j] for j in rows],
            "place": rows.tolist(),
            "low": None if bounds is None else _packed(bounds[0][rows], "<f8"),
            "high": None if bounds is None else _packed(bounds[1][rows], "<f8"),
            "grid": self.grid,
            "created": settings.created,
            "uid": settings.uid,
            "simulated": settings.run is not None,
            "list": [[name, str(value)] for name, value in self.described().items()],
        }

    def described(self) -> dict[str, Any]:
        """All settings, by name, in the order to read them."""
        settings, run = self.settings, dict(self.settings.run or {})
        options, own = run.pop("options", None), run.pop("settings", None)
        told: dict[str, Any] = {"algorithm": settings.algorithm}
        told |= {"task": run.pop("task")} if "task" in run else {}
        told |= options if isinstance(options, dict) else {}
        told |= {"parameters": settings.n_parameters, "batch": settings.batch, "repeats": settings.repeats}
        told |= self.algorithm
        told |= own if isinstance(own, dict) else {}
        if settings.bounds is not None:
            told["outside the bounds"] = settings.outside
        return told | run | {"seed": settings.seed}

    def _columns_data(self, rows: NDArray[np.int64], updates: int) -> dict[str, Any]:
        """The columns of the heat map from the one that update `updates` + 1 is in."""
        start = next(
            (place for place, column in enumerate(self._columns) if column.number > updates),
            len(self._columns),
        )
        columns = self._columns[start:]
        effectiveness = _stack([column.effectiveness / max(column.measured, 1) for column in columns], rows)
        effectiveness = np.nan_to_num(np.maximum(effectiveness, 0), posinf=float(np.finfo(np.float32).max))
        top = effectiveness.max(axis=1, initial=0.0)
        share = effectiveness / np.where(top > 0, top, 1)[:, None]
        marked = _stack([column.marked / max(column.measured, 1) for column in columns], rows)
        return {
            "from": start,
            "number": [column.number for column in columns],
            "width": self._width,
            "measured": [column.measured > 0 for column in columns],
            "top": top.tolist(),
            # the root leaves small values their digits
            "effectiveness": _packed(np.rint(255 * np.sqrt(share)), "u1"),
            "marked": _packed(np.rint(255 * marked), "u1"),
            "mean": _packed(_stack([column.mean for column in columns], rows), "<f4"),
            "std": _packed(_stack([column.std for column in columns], rows), "<f4"),
        }

    def _notes(self) -> list[str]:
        notes = []
        sizes = self.curve[:, 1 + CURVE.index("effective_sample_size")]
        sizes = sizes[np.isfinite(sizes)]
        if sizes.size and np.median(sizes) < 2:
            notes.append(
                "In most updates nearly all the weight lies on the best episode of the batch; a smaller "
                "epsilon or a larger batch lets more episodes count."
            )
        if self.settled >= self.settings.batch:
            notes.append(
                f"{self.settled} samples are there and the update has not happened: too few are good, or it "
                "failed. It is tried again with the next return."
            )
        if self.settings.n_parameters > MOST_ROWS:
            notes.append(f"{MOST_ROWS} of {self.settings.n_parameters:,} parameters are shown.")
        return notes


def largest(values: NDArray[Any], count: int) -> NDArray[np.int64]:
    """Places of the `count` largest values; of equals, those that come first."""
    return np.argsort(-values, kind="stable")[:count]


def joints_and_time(settings: Settings) -> dict[str, Any] | None:
    """How the parameters of a movement lie in joints and time; None where they are no such thing.

    Either a simulated task says so, whose policy is a ProMP; or the names do: shoulder[0], shoulder[1], ...,
    elbow[0], ..., as many for each joint.
    """
    joints = _joints_of_task(settings) or _joints_of_names(settings.names)
    return None if joints is None else {"joints": joints, "bases": settings.n_parameters // len(joints)}


def _joints_of_task(settings: Settings) -> list[str] | None:
    from klimb.policies.promp import ProMP
    from klimb.tasks import make_task

    run = settings.run or {}
    options = run.get("options")
    if run.get("task") not in MOVEMENTS:
        return None
    try:
        policy: Any = make_task(run["task"], **(options if isinstance(options, dict) else {})).policy  # type: ignore[attr-defined]
    except (ValueError, ImportError):  # of another version, or without its simulator
        return None
    if not isinstance(policy, ProMP) or policy.n_parameters != settings.n_parameters:
        return None
    return [f"joint {number}" for number in range(1, policy.n_joints + 1)]


def _joints_of_names(names: tuple[str, ...]) -> list[str] | None:
    found = [re.fullmatch(r"(.+)\[(\d+)\]", name) for name in names]
    pairs = [(match[1], int(match[2])) for match in found if match is not None]
    joints = list(dict.fromkeys(joint for joint, _ in pairs))
    if len(pairs) < len(names) or len(joints) < 2 or len(names) % len(joints):
        return None
    wanted = [(joint, place) for joint in joints for place in range(len(names) // len(joints))]
    first = min(place for _, place in pairs)
    return joints if wanted == [(joint, place - first) for joint, place in pairs] else None


def _algorithm_settings(path: Path) -> dict[str, Any]:
    """What the algorithm was made with, by name."""
    with Study(path) as study:
        algorithm: Any = getattr(study.optimizer, "algorithm", None)
    return dict(_flat(algorithm)) if is_dataclass(algorithm) else {}


def _flat(settings: Any) -> Iterator[tuple[str, Any]]:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if field.name == "name" or value is None:
            continue
        if is_dataclass(value):
            yield from _flat(value)
        else:
            yield field.name, getattr(value, "__qualname__", value)


def _signature(path: Path) -> tuple[int, ...] | None:
    """Differs when the file was written; None if it was written just now, so that this may not show."""
    seen: list[int] = []
    for one in (path, log_of(path)):
        try:
            stat = one.stat()
        except OSError:
            seen += [0, 0, 0]
        else:
            seen += [stat.st_ino, stat.st_size, stat.st_mtime_ns]
            if time.time() - stat.st_mtime < UNSETTLED:
                return None
    return tuple(seen)


def _changed(path: Path) -> str | None:
    """When the study was last written."""
    times = []
    for one in (path, log_of(path)):
        try:
            times.append(one.stat().st_mtime)
        except OSError:
            continue
    return as_text(datetime.fromtimestamp(max(times), UTC)) if times else None


def _zeros(n: int) -> Vector:
    return np.zeros(n, dtype=np.float32)


def _floats(blob: bytes, n: int) -> Vector:
    """A vector (n,) of the file."""
    array = np.frombuffer(blob, dtype="<f8")
    if array.shape != (n,):
        raise ValueError(f"a vector is not {n} numbers long")
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _stack(vectors: list[NDArray[Any]], rows: NDArray[np.int64]) -> Vector:
    """Vectors as rows, (k, r)."""
    return np.array([vector[rows] for vector in vectors], dtype=np.float32).reshape(-1, rows.size)


def _packed(array: ArrayLike, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array, dtype=kind).tobytes()).decode()
