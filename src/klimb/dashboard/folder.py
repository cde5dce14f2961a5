"""Which studies there are, the films that lie beside them, and how groups of them compare over seeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from klimb.dashboard.data import CURVE, Follower, Room
from klimb.report.figures import mean_and_interval
from klimb.study.file import StudyError, is_study, not_a_study

FILMS = {".gif": "image/gif", ".png": "image/png", ".mp4": "video/mp4", ".webm": "video/webm"}

MOST_FILES = 10_000  # that are looked at in a folder
COMPARED = 200  # places along a curve of a comparison


class Folder:
    """The studies at a path: the one it names, or all below it, found anew at every look."""

    def __init__(self, path: Path, room: Room | None = None) -> None:
        if not path.exists():
            raise FileNotFoundError(f"there is nothing at {path}; make a study with: klimb study create FILE")
        self.path = path
        self.single = not path.is_dir()
        self._room = room or Room()
        if self.single and not is_study(path):
            raise not_a_study(path)
        self._followers: dict[str, Follower] = {}
        self._compared: tuple[Any, list[dict[str, Any]]] = (None, [])

    def follower(self, key: str) -> Follower | None:
        """The study of that key, if there is one."""
        return self._followers.get(key) or self.followers().get(key)

    def followers(self) -> dict[str, Follower]:
        """The studies that are there now, by key: their path within the folder."""
        found = {self.path.name: self.path} if self.single else find_studies(self.path)
        known = self._followers
        self._followers = {
            key: known[key] if key in known else Follower(path, key, self._room)
            for key, path in found.items()
        }
        return self._followers

    def overview(self) -> dict[str, Any]:
        """A line per study, and curves to compare."""
        lines, readable, seen = [], [], []
        for follower in self.followers().values():
            with follower.lock:
                try:
                    follower.refresh(vectors=False)
                except (StudyError, ValueError, OSError) as error:
                    lines.append({"key": follower.key, "error": str(error)})
                    continue
                lines.append(follower.summary())
                readable.append(follower)
                seen.append((follower.key, follower.settings.uid, follower.updates))
        if self._compared[0] != seen:
            self._compared = (seen, compare([run_of(follower) for follower in readable if follower.updates]))
        return {
            "single": self.single,
            "name": self.path.resolve().name,
            "studies": lines,
            "groups": self._compared[1],
        }


def find_studies(folder: Path) -> dict[str, Path]:
    """All studies in a folder and below, by their path within it; hidden folders are passed over."""
    found: dict[str, Path] = {}
    looked = 0
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        for name in sorted(names)[: MOST_FILES - looked]:
            path = Path(place, name)
            if not name.endswith(("-wal", "-shm", ".part")) and is_study(path):
                found[path.relative_to(folder).as_posix()] = path
        looked += len(names)
        if looked > MOST_FILES:
            break
    return found


def films(study: Path) -> list[Path]:
    """Films and pictures beside a study that bear its name: arm.gif, arm-best.mp4 beside arm.db."""
    stem = study.stem
    try:
        beside = sorted(study.absolute().parent.iterdir())
    except OSError:
        return []
    return [
        path
        for path in beside
        if path.suffix.lower() in FILMS
        and (path.stem == stem or path.stem.startswith((f"{stem}-", f"{stem}_", f"{stem}.")))
        and path.is_file()
    ]


class Run(NamedTuple):
    """A study as one of several.

    Attributes
    ----------
    key
        What pages call it.
    settings
        All but the seed and the length of the run, by name.
    names
        Of the parameters.
    curve : (k, 2)
        Episodes and the mean return of the batch.
    """

    key: str
    settings: dict[str, str]
    names: tuple[str, ...]
    curve: NDArray[np.float64]

    @property
    def problem(self) -> str:
        """What was to be learned: returns of two problems do not belong on one axis."""
        count = len(self.names)
        if "task" in self.settings:
            return f"{self.settings['task']}, {count} parameters"
        return ", ".join(self.names[:3]) + ("" if count <= 3 else f", ... ({count} parameters)")


def run_of(follower: Follower) -> Run:
    """A study that was read, to compare with others."""
    with follower.lock:
        described = follower.described()
        places = [1 + CURVE.index(name) for name in ("episodes", "mean_return")]
        return Run(
            follower.key,
            {name: str(value) for name, value in described.items() if name not in ("seed", "episodes")},
            follower.settings.names,
            follower.curve[:, places],
        )


def compare(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Groups of runs that differ by their seed alone: mean learning curve and confidence interval."""
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.names, *run.settings.items()), []).append(run)
    made = []
    for members in groups.values():
        episodes, values = _on_one_axis([run.curve for run in members])
        mean, half = mean_and_interval(values)
        made.append(
            {
                "label": _label(members[0], [others[0] for others in groups.values()]),
                "problem": members[0].problem,
                "studies": [run.key for run in members],
                "episodes": episodes.tolist(),
                "mean": mean.tolist(),
                "low": (mean - half).tolist(),
                "high": (mean + half).tolist(),
            }
        )
    return made


def _label(run: Run, others: Sequence[Run]) -> str:
    """A short name: the algorithm, and what tells the run from others of that algorithm."""
    mine = run.settings
    alike = [
        other.settings
        for other in others
        if other.problem == run.problem and other.settings["algorithm"] == mine["algorithm"]
    ]
    telling = [
        f"{name} {value}"
        for name, value in mine.items()
        if any(settings.get(name) != value for settings in alike)
    ]
    return ", ".join([mine["algorithm"], *telling])


def _on_one_axis(
    curves: Sequence[NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Episodes (k,) and mean returns (seeds, k) at these, NaN where a run has not come so far."""
    episodes = np.unique(np.concatenate([curve[:, 0] for curve in curves]))
    if episodes.size > COMPARED:
        episodes = episodes[np.unique(np.linspace(0, episodes.size - 1, COMPARED).round().astype(int))]
    values = [np.interp(episodes, curve[:, 0], curve[:, 1], np.nan, np.nan) for curve in curves]
    return episodes, np.array(values)
