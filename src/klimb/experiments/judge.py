"""How good what was learned is, after every epoch of a run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray
from klimb.experiments import contact
from klimb.optimizer import Learner
from klimb.tasks import Task, episode_seeds

# Streams of a run by the last part of their spawn key; 0 to 2 are those of Optimizer and maximize.
EPISODES, DRAWS, JUDGING = 2, 3, 4


class Judge:
    """Says how good a belief is, from episodes that are not counted.

    Draws and episodes of an epoch depend on (seed, epoch) alone, and on no stream of the search.
    """

    def __init__(self, task: Task, draws: int, seed: int) -> None:
        self.task, self.draws, self.seed = task, draws, seed
        self.evaluate = successes(task)

    def __call__(self, learner: Learner, epoch: int) -> dict[str, Any]:
        """Judge the belief of that epoch."""
        theta = learner.sample(generator(self.seed, epoch), self.draws)
        seeds = episode_seeds(stream(self.seed, epoch, JUDGING), self.draws + 1)
        returns, success = self.evaluate(np.vstack([theta, learner.mean]), seeds)
        return {
            "belief_return": average(returns[:-1]),
            "mean_policy_return": average(returns[-1:]),
            "success_rate": None if success is None else float(success[:-1].mean()),
            "contact_rate": contact.rate(self.task, theta, seeds[:-1]),
        }


def generator(seed: int, epoch: int) -> np.random.Generator:
    """What the draws of an epoch come from."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, DRAWS)))


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


def average(returns: FloatArray) -> float | None:
    """Mean of the episodes that did not fail."""
    good = returns[np.isfinite(returns)]
    return float(good.mean()) if good.size else None
