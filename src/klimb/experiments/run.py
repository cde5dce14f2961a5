"""One run: settings and a seed in, a table of rows out; the same wherever and whenever it is done."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from klimb import __version__
from klimb._validation import IntArray
from klimb.algorithms import BASELINES, make_algorithm
from klimb.experiments import estimators, overview
from klimb.experiments.baselines import baseline_run
from klimb.experiments.judge import EPISODES, Judge, average, stream
from klimb.experiments.plan import ESTIMATORS, OVERVIEW, SEARCH, Settings
from klimb.optimizer import Optimizer
from klimb.tasks import make_task
from klimb.updates import UpdateInfo

#: Columns of a search, one row per epoch; epoch 0 is the belief before it has learned anything.
#:
#: belief_return, success_rate, contact_rate: averages over draws from the belief, which are no episodes.
#: mean_policy_return: of the belief's mean, one episode. batch_return: average of the epoch's episodes.
#: n_failed: episodes without a return. failed_update: 1 if the update was not a normal distribution any more.
#: selected: the local coordinates found effective, a bit each, the lowest first coordinate, in hexadecimal.
COLUMNS = (
    "epoch",
    "episodes",
    "belief_return",
    "mean_policy_return",
    "batch_return",
    "success_rate",
    "contact_rate",
    "kl",
    "entropy",
    "effective_sample_size",
    "n_failed",
    "failed_update",
    "selected",
    "precision",
    "recall",
)
COLUMNS_OF = {SEARCH: COLUMNS, ESTIMATORS: estimators.COLUMNS, OVERVIEW: overview.COLUMNS}


class Table(NamedTuple):
    """What a run leaves: text as it stands in the files, so that reading and writing changes nothing."""

    settings: Settings
    seed: int
    version: str
    rows: list[list[str]]


def perform(settings: Settings, seed: int) -> Table:
    """Do a run."""
    if settings["kind"] == ESTIMATORS:
        records = estimators.compare(settings, seed)
    elif settings["kind"] == OVERVIEW:
        records = overview.matrices(settings, seed)
    elif settings["algorithm"] in BASELINES:
        records = baseline_run(settings, seed)
    else:
        records = search_run(settings, seed)
    columns = COLUMNS_OF[settings["kind"]]
    rows = [[cell(record.get(column)) for column in columns] for record in records]
    return Table(settings, seed, __version__, rows)


def cell(value: Any) -> str:
    """A value as text: eight digits, nothing for what is not there."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return f"{value:.8g}" if isinstance(value, (float, np.floating)) else str(value)


def search_run(settings: Settings, seed: int) -> list[dict[str, Any]]:
    """Learn a task with :class:`klimb.Optimizer`; a record per epoch."""
    task = make_task(settings["task"], **settings["options"])
    search = make_algorithm(settings["algorithm"], **settings["settings"])
    optimizer = Optimizer(search, mean=np.zeros(task.n_parameters), std=settings["std"], seed=seed)
    judge = Judge(task, settings["draws"], seed)
    known = getattr(task, "effective_parameters", None) if not search.full else None
    count, rollouts = settings["batch"] // settings["rollouts"], settings["rollouts"]

    records = [{"epoch": 0, "episodes": 0, "entropy": optimizer.entropy, **judge(optimizer, 0)}]
    theta, returns = np.empty((0, task.n_parameters)), np.empty(0)
    for epoch in range(1, settings["epochs"] + 1):
        asked = optimizer.ask(count)
        episodes = task.evaluate(np.repeat(asked, rollouts, axis=0), stream(seed, epoch, EPISODES))
        # too few good episodes for an update wait for the next batch
        theta = np.vstack([theta, asked])
        returns = np.append(returns, episodes.reshape(count, rollouts).mean(axis=1))
        record = {
            "epoch": epoch,
            "episodes": epoch * settings["batch"],
            "batch_return": average(episodes),
            "n_failed": int((~np.isfinite(episodes)).sum()),
            "failed_update": 0,
        }
        records.append(record)
        if np.isfinite(returns).sum() >= search.fewest:
            try:
                info = optimizer.tell(theta, returns)
            except np.linalg.LinAlgError:
                info = None
            if info is None or not positive_definite(optimizer):
                record["failed_update"] = 1
                break
            theta, returns = theta[:0], returns[:0]
            record |= describe(info, task.n_parameters, known)
        record |= {"entropy": optimizer.entropy, **judge(optimizer, epoch)}
    return records


def describe(info: UpdateInfo, n: int, known: IntArray | None) -> dict[str, Any]:
    """What an update reports, as cells; precision and recall where the effective parameters are known."""
    record: dict[str, Any] = {"kl": info.kl, "effective_sample_size": info.effective_sample_size}
    if info.selected is not None:
        record["selected"] = bits(info.selected, n)
        if known is not None:
            found = np.intersect1d(info.selected, known).size
            record |= {"precision": found / info.selected.size, "recall": found / known.size}
    return record


def bits(selected: IntArray, n: int) -> str:
    """A set of coordinates below n as a hexadecimal number, coordinate j being bit j."""
    return f"{sum(1 << int(j) for j in selected):0{-(-n // 4)}x}"


def positive_definite(optimizer: Optimizer) -> bool:
    """Whether the belief is still a normal distribution with a density."""
    belief = optimizer.belief
    return bool(
        np.isfinite(belief.mean).all()
        and np.isfinite(belief.variances).all()
        and (belief.variances > 0).all()
    )
