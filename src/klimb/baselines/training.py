"""Learning by acting: what PPO, TRPO, REINFORCE and ARS V2 have in common.

An update takes `batch` whole episodes, as in the paper ("episodes per fit"), all at the same time in an
:class:`~klimb.baselines.stepping.Arena`. Episodes are counted, not steps, and their returns are the task's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from klimb._validation import FloatArray, whole
from klimb.baselines.stepping import Act, Arena, BoolArray, Rollout, make_arena, run
from klimb.optimizer import CURVE, Progress, batch_seed, put_arrays, replace_file
from klimb.tasks import Task, episode_seeds
from klimb.updates import UpdateInfo


class Agent(Protocol):
    """A learner under way."""

    @property
    def parameters(self) -> FloatArray:
        """All that the policy has learned, in one vector (p,)."""
        ...

    def explore(self) -> Act:
        """Give what to act by in the next batch of episodes."""
        ...

    def learn(self, rollout: Rollout) -> None:
        """Learn from that batch; episodes that failed are left out."""
        ...

    def policy(self, deterministic: bool, rng: np.random.Generator) -> Act:
        """Give what was learned, with or without its randomness."""
        ...

    def arrays(self) -> dict[str, FloatArray]:
        """Give what was learned, by name, to be saved."""
        ...


@runtime_checkable
class Stepwise(Protocol):
    """A learner's settings, made by its recipe."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def settings(self) -> dict[str, Any]: ...  # noqa: D102

    @property
    def fewest(self) -> int: ...  # noqa: D102

    def check(self, batch: int) -> None:
        """Raise a ValueError if the settings do not suit the batch."""
        ...

    def agent(self, arena: Arena, batch: int, seed: int) -> Agent:
        """Begin to learn."""
        ...


class Learning:
    """An agent with what :func:`klimb.maximize` tells of an optimizer."""

    def __init__(self, agent: Agent, algorithm: Stepwise, seed: int) -> None:
        self.agent, self.algorithm, self.seed = agent, algorithm, seed
        self.iteration = 0

    @property
    def mean(self) -> FloatArray:
        """Parameters of the policy, (p,)."""
        return self.agent.parameters

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what the policy has learned, by name, to an .npz file for ``numpy.load``."""
        header = {
            "format": "klimb-policy",
            "version": 1,
            "algorithm": self.algorithm.name,
            "settings": dict(self.algorithm.settings),
            "seed": self.seed,
            "iteration": self.iteration,
        }
        replace_file(path, lambda file: put_arrays(file, header, self.agent.arrays()))


@dataclass(frozen=True, eq=False)
class Trained:
    """What :func:`train` found; the fields are those of :class:`klimb.Result`.

    There are no best parameters: a policy that changes from batch to batch, and acts at random, has none.
    """

    mean: FloatArray
    best_return: float
    curve: Any
    episodes: int
    n_failed: int
    optimizer: Learning
    arena: Arena

    def evaluate(self, seeds: Any, *, deterministic: bool) -> tuple[FloatArray, BoolArray]:
        """Returns and successes (N,) of what was learned, one episode per seed."""
        seeds = np.asarray(seeds, dtype=np.uint64)
        returns, success = np.empty(len(seeds)), np.zeros(len(seeds), dtype=np.bool_)
        act = self.optimizer.agent.policy(deterministic, np.random.default_rng(0))
        for first in range(0, len(seeds), self.arena.count):
            part = slice(first, first + self.arena.count)
            rollout = run(self.arena, act, seeds[part])
            returns[part], success[part] = rollout.returns, rollout.success
        return returns, success


def first_policy(task: Task, algorithm: Stepwise, *, batch: int, seed: int = 0) -> FloatArray:
    """Parameters (p,) of the policy that :func:`train` begins with."""
    batch = whole("batch", batch, algorithm.fewest)
    algorithm.check(batch)
    return algorithm.agent(make_arena(task, algorithm.name, batch), batch, whole("seed", seed, 0)).parameters


def train(
    task: Task,
    algorithm: Stepwise,
    *,
    episodes: int,
    batch: int,
    seed: int = 0,
    callback: Callable[[Progress], object] | None = None,
) -> Trained:
    """Learn a policy for a task by acting in its environment.

    What acts in an update, the policy's parameters before it, is the one row of ``Progress.theta``.

    Parameters
    ----------
    task
        One that has an environment: lqr, ship-steering, air-hockey, ball-stopping, gymnasium:ID.
    algorithm
        Made by ``klimb.make_algorithm``: "ppo", "trpo", "reinforce", or "ars" with ``version="v2-t"``.
    episodes
        How many to spend at most; a rest too small for a batch is not spent.
    batch
        How many per update.
    seed
        The same seed gives the same run.
    callback
        Called with a :class:`klimb.Progress` after every update; returning True ends the learning.
    """
    batch = min(whole("batch", batch, algorithm.fewest), whole("episodes", episodes, algorithm.fewest))
    algorithm.check(batch)
    arena = make_arena(task, algorithm.name, batch)
    agent = algorithm.agent(arena, batch, whole("seed", seed, 0))
    learning = Learning(agent, algorithm, seed)
    best_return = -np.inf
    curve: list[tuple[float, ...]] = []
    spent = n_failed = 0
    unknown = float("nan")
    while spent + batch <= episodes:
        source = batch_seed(seed, learning.iteration, 0, batch).generate_state(1, np.uint64)[0]
        seeds = episode_seeds(int(source), batch)
        acting = agent.parameters[None]
        rollout = run(arena, agent.explore(), seeds)
        spent += batch
        good = ~rollout.failed
        n_failed += batch - int(good.sum())
        if good.any():
            best_return = max(best_return, float(rollout.returns[good].max()))
            agent.learn(rollout)
            mean_return = float(rollout.returns[good].mean())
            curve.append((spent, mean_return, best_return, unknown, unknown, batch - int(good.sum())))
        learning.iteration += 1
        if callback is not None:
            info = UpdateInfo(
                kl=unknown, entropy_drop=unknown, n_used=int(good.sum()), n_failed=batch - int(good.sum())
            )
            success = rollout.success if arena.tells_success else None
            progress = Progress(learning, info, acting, rollout.returns, spent, best_return, success)
            if callback(progress) is True:
                break
    if not curve:
        raise RuntimeError(f"all of {spent} episodes failed: nothing to learn from.")
    made = np.array(curve, dtype=CURVE)
    return Trained(learning.mean, best_return, made, spent, n_failed, learning, arena)
