"""Learners that act step by step in an environment: their episodes, recorded update by update.

The sample of an update is the policy's parameter vector that acted, and its episodes are the repeats of that
one sample. No file could hold such a learner, but it learns the same again from the same seed. Going on with
a study therefore begins anew, and what is stored already must come out again.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, vector, whole
from klimb.algorithms import make_algorithm
from klimb.optimizer import Progress, get_arrays, put_arrays, written
from klimb.study.file import INSERT_SAMPLE, File, StudyError
from klimb.study.learners import sample_seeds, update_row
from klimb.study.settings import MOST, Settings, now

if TYPE_CHECKING:
    from klimb.baselines import Stepwise

KIND = "agent"
FORMAT = "klimb-agent"


def begin(algorithm: Any, mean: ArrayLike | None, batch: int, seed: int | None) -> tuple[bytes, int]:
    """What the file holds of a learner, its settings and the policy that it starts with; and its seed."""
    if mean is None or seed is None:
        raise ValueError(
            f"{algorithm.name} acts step by step: its study needs a seed, and as mean the policy to start "
            "with, klimb.baselines.first_policy(task, algorithm, batch=..., seed=...)."
        )
    algorithm.check(whole("batch", batch, algorithm.fewest, MOST))
    header = {"format": FORMAT, "algorithm": algorithm.name, "settings": dict(algorithm.settings)}
    start = {"start": vector("mean", mean)}
    return written(lambda file: put_arrays(file, header, start)), whole("seed", seed, 0)


def restore(state: bytes) -> tuple[Stepwise, FloatArray]:
    """The learner's settings, and the policy (p,) that it starts with."""
    header, arrays = get_arrays(io.BytesIO(state), FORMAT)
    return make_algorithm(header["algorithm"], **header["settings"]), vector("start", arrays["start"])


def record(file: File, settings: Settings, progress: Progress) -> None:
    """Store an update of ``train`` and its episodes in one transaction; if they are there, compare."""
    acting, returns = np.float64(progress.theta[0]), progress.returns
    if (acting.size, returns.size) != (settings.n_parameters, settings.repeats):
        raise ValueError(
            f"{file.path} holds policies of {settings.n_parameters} parameters and {settings.repeats} "
            f"episodes per update, but these have {acting.size} and {returns.size}: is the task another one?"
        )
    number = progress.optimizer.iteration
    values = [value if np.isfinite(value) else None for value in returns.tolist()]
    with file.writing(tidied=True):
        stored = file.all(
            "SELECT return, parameters FROM episodes WHERE iteration = ? AND position = 0 ORDER BY repeat",
            number - 1,
        )
        if stored:
            if [row[0] for row in stored] != values or stored[0][1] != acting.tobytes():
                raise StudyError(
                    f"{settings.algorithm} does not learn the same again: update {number} differs from the "
                    f"one in {file.path}, which was made with another version of klimb, of a library, or on "
                    "another kind of computer. What is stored stays; a new study can begin anew."
                )
            return
        (last,) = file.one("SELECT coalesce(max(id), 0) FROM trials")
        file.change(INSERT_SAMPLE, [(last + 1, number - 1, 0, "asked", "inside", acting.tobytes(), None)])
        row = update_row(
            number, progress.info, returns, progress.episodes, progress.best_return, progress.optimizer
        )
        file.insert("updates", row)
        seeds = sample_seeds(settings.seed, number - 1, 0, 0, len(values), len(values))
        moment = now()
        file.change(
            "INSERT INTO trials (id, sample, repeat, seed, status, return, reason, asked, told, used, extra, "
            "issued) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)",
            [
                (
                    *(last + 1 + repeat, last + 1, repeat, seeds[repeat]),
                    *(("failed", None, "the simulation failed") if value is None else ("done", value, None)),
                    *(moment, moment, number, _extra(progress, repeat)),
                )
                for repeat, value in enumerate(values)
            ],
        )
        file.change("UPDATE state SET iteration = ?", [(number,)])


def _extra(progress: Progress, place: int) -> str | None:
    """What is known of an episode besides its return."""
    return None if progress.success is None else json.dumps({"success": bool(progress.success[place])})
