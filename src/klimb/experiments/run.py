"""One run: settings and a seed in, a table of rows out; the same wherever and whenever it is done."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from klimb import __version__
from klimb._blas import single_threaded
from klimb._validation import FloatArray, IntArray
from klimb.algorithms import make_algorithm
from klimb.experiments import contact, estimators, overview
from klimb.experiments.baselines import BASELINES, run_baseline
from klimb.experiments.plan import ESTIMATORS, OVERVIEW, SEARCH, Settings
from klimb.optimizer import Optimizer
from klimb.tasks import Task, episode_seeds, make_task
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

# Streams of a run by the last part of their spawn key; 0 to 2 are those of Optimizer and maximize.
EPISODES, DRAWS, JUDGING = 2, 3, 4


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
        records = run_baseline(settings, seed)
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


class Judge:
    """Says how good a belief is, from episodes that are not counted.

    Draws and episodes of an epoch depend on (seed, epoch) alone, and on no stream of the search.
    """

    def __init__(self, task: Task, draws: int, seed: int) -> None:
        self.task, self.draws, self.seed = task, draws, seed
        self.evaluate = successes(task)

    def __call__(self, optimizer: Optimizer, epoch: int) -> dict[str, Any]:
        """Judge the belief of that epoch."""
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(epoch, DRAWS)))
        with single_threaded():
            theta = optimizer.belief.sample(rng, self.draws)
        seeds = episode_seeds(stream(self.seed, epoch, JUDGING), self.draws + 1)
        returns, success = self.evaluate(np.vstack([theta, optimizer.mean]), seeds)
        return {
            "belief_return": average(returns[:-1]),
            "mean_policy_return": average(returns[-1:]),
            "success_rate": None if success is None else float(success[:-1].mean()),
            "contact_rate": contact.rate(self.task, theta, seeds[:-1]),
        }


def stream(seed: int, epoch: int, purpose: int) -> int:
    """Seed of an epoch's episodes."""
    sequence = np.random.SeedSequence(seed, spawn_key=(epoch, purpose))
    return int(sequence.generate_state(1, np.uint64)[0])


def successes(task: Task) -> Callable[[FloatArray, Any], tuple[FloatArray, NDArray[np.bool_] | None]]:
    """Evaluate with success where the task tells, and with None where it does not."""
    evaluate: Any = task.evaluate
    if "return_success" in inspect.signature(evaluate).parameters:
        return lambda theta, seeds: evaluate(theta, seeds, return_success=True)
    return lambda theta, seeds: (evaluate(theta, seeds), None)


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


def average(returns: FloatArray) -> float | None:
    """Mean of the episodes that did not fail."""
    good = returns[np.isfinite(returns)]
    return float(good.mean()) if good.size else None


def positive_definite(optimizer: Optimizer) -> bool:
    """Whether the belief is still a normal distribution with a density."""
    belief = optimizer.belief
    return bool(
        np.isfinite(belief.mean).all()
        and np.isfinite(belief.variances).all()
        and (belief.variances > 0).all()
    )
