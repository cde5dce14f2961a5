"""Many environments of a task that step at once, for learners that act step by step.

An :class:`Arena` holds N environments, numbered by row; any rows of it can be reset or stepped together.
klimb's own tasks are computed for all rows at once; Gymnasium environments do their steps one after the
other. :func:`run` lets one episode per row go to its end.

Dynamics, rewards, starts and time limits are those of the task's Gymnasium environment, and so are actions:
an arena clips them to the action space. Returns are discounted as the task does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray, IntArray
from klimb.policies.linear import Linear
from klimb.tasks import Task
from klimb.tasks.gymnasium import GymnasiumTask, make_environment, mujoco_warned, simulator_failures
from klimb.tasks.lqr import LQR
from klimb.tasks.ship_steering import FIXED_START, OUT_COST, SHIP, ShipSteering

BoolArray = NDArray[np.bool_]
Seeds = NDArray[np.uint64]

#: Actions (k, a) at observations (k, o) of the environments `rows` (k,).
Act = Callable[[FloatArray, IntArray], FloatArray]


class Moves(NamedTuple):
    """What a step brought to k environments."""

    observations: FloatArray
    """(k, o)"""
    rewards: FloatArray
    """(k,), NaN where the simulation broke down, which ends the episode."""
    over: BoolArray
    """(k,): the episode has ended for good."""
    cut: BoolArray
    """(k,): a limit of the environment has ended it, the time limit for example."""
    success: BoolArray
    """(k,): and it ended well."""


class Arena(Protocol):
    """N environments.

    Attributes
    ----------
    count
        How many environments, N.
    low, high
        Bounds of the actions, (a,) each.
    horizon, discount
        Steps of an episode at most, and the weight of a reward relative to that of the step before.
    tells_success
        Whether the task says which episodes succeed.
    policy
        The task's own policy if it acts on observations, else None.
    """

    count: int
    n_observations: int
    low: FloatArray
    high: FloatArray
    horizon: int
    discount: float
    tells_success: bool
    policy: Any

    @property
    def n_actions(self) -> int: ...  # noqa: D102

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """Begin an episode in each of the `rows` (k,); first observations (k, o)."""
        ...

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """Act (k, a) in the environments `rows` (k,)."""
        ...


# ------------------------------------------------------------------------------------------------- episodes


@dataclass(frozen=True, eq=False)
class Rollout:
    """Episodes, one per seed, and all their T steps, episode after episode.

    Attributes
    ----------
    returns : (N,)
        Discounted; NaN where an episode failed.
    lengths, success, terminated : (N,)
        Steps, whether it succeeded, and whether it ended for good and not by a limit.
    last : (N, o)
        Observation after the last step.
    episode : (T,)
        The episode that each step belongs to.
    observations : (T, o)
        What the policy acted on.
    rewards : (T,)
    order : (T,)
        Places of the steps in the order in which they were taken: all first steps, all second steps, ...
    """

    returns: FloatArray
    lengths: IntArray
    success: BoolArray
    terminated: BoolArray
    last: FloatArray
    episode: IntArray
    observations: FloatArray
    rewards: FloatArray
    order: IntArray

    @property
    def failed(self) -> BoolArray:
        """Which episodes failed, (N,)."""
        return ~np.isfinite(self.returns)


def run(arena: Arena, act: Act, seeds: Seeds) -> Rollout:
    """Run one episode per seed, at most `arena.count`, all at the same time."""
    count = len(seeds)
    rows = np.arange(count)
    seen = arena.reset(rows, seeds)
    returns, lengths = np.zeros(count), np.zeros(count, dtype=np.int64)
    success, terminated = np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.bool_)
    last = seen.copy()
    steps: list[tuple[IntArray, FloatArray, FloatArray]] = []
    weight = 1.0
    for step in range(arena.horizon):
        after, rewards, over, cut, well = arena.step(rows, act(seen, rows))
        steps.append((rows, seen, rewards))
        returns[rows] += weight * rewards
        weight *= arena.discount
        lengths[rows] = step + 1
        success[rows], terminated[rows] = well, over
        last[rows] = after
        going = ~(over | cut)
        if not going.all():
            rows, seen = rows[going], after[going]
            if rows.size == 0:
                break
        else:
            seen = after
    episode = np.concatenate([step[0] for step in steps])
    order = np.argsort(episode, kind="stable")
    return Rollout(
        returns,
        lengths,
        success,
        terminated,
        last,
        episode[order],
        np.concatenate([step[1] for step in steps])[order],
        np.concatenate([step[2] for step in steps])[order],
        order,
    )


# --------------------------------------------------------------------------------------------------- arenas


class LQRArena:
    """The LQR, in numpy."""

    tells_success = False

    def __init__(self, task: LQR, count: int) -> None:
        self.count, self.n_observations = count, task.n_states
        self.low, self.high = np.full(task.n_states, -1.0), np.full(task.n_states, 1.0)
        self.horizon, self.discount = task.horizon, task.discount
        self.policy = Linear(task.n_states, task.n_states)
        self._random = task.start == "random"
        self._b, self._q, self._r = task._diagonals
        self._states = np.full((count, task.n_states), 0.9)

    @property
    def n_actions(self) -> int:
        """One per state."""
        return self.n_observations

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """See :class:`Arena`."""
        starts = np.full((len(rows), self.n_observations), 0.9)
        if self._random:
            for start, seed in zip(starts, seeds, strict=True):
                start[:] = np.random.default_rng(seed).uniform(-1, 1, self.n_observations)
        self._states[rows] = starts
        return starts

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """See :class:`Arena`."""
        x = self._states[rows]
        u = np.minimum(np.maximum(actions, -1.0), 1.0)
        rewards = -(self._q * x * x + self._r * u * u).sum(axis=1)
        after = np.minimum(np.maximum(x + self._b * u, -1.0), 1.0)
        self._states[rows] = after
        never = np.zeros(len(rows), dtype=np.bool_)
        return Moves(after, rewards, never, never, never)


class ShipArena:
    """The ship, compiled."""

    tells_success = True
    n_observations = 4
    n_actions = 1

    def __init__(self, task: ShipSteering, count: int) -> None:
        from klimb.baselines import _ship_steps  # here, so that numba loads with the first episode

        self._sail = _ship_steps.sail_rows
        self.count = count
        self.low, self.high = np.array([-SHIP.rate_limit]), np.array([SHIP.rate_limit])
        self.horizon, self.discount, self.policy = task.horizon, task.discount, task.policy
        self._task = task
        self._states = np.tile(np.array(FIXED_START), (count, 1))

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """See :class:`Arena`."""
        starts = self._task.start_states(seeds)
        self._states[rows] = starts
        return starts

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """See :class:`Arena`."""
        states, rewards, over, success = self._sail(
            SHIP, OUT_COST, self._states[rows], np.ascontiguousarray(actions[:, 0])
        )
        self._states[rows] = states
        return Moves(states, rewards, over, np.zeros_like(over), success)


class EnvironmentArena:
    """Gymnasium environments, one after the other."""

    def __init__(
        self,
        make: Callable[[], gymnasium.Env[Any, Any]],
        count: int,
        horizon: int,
        discount: float,
        *,
        policy: Any = None,
        reuse: bool = True,
        failures: tuple[type[Exception], ...] = (),
    ) -> None:
        self.policy = policy
        self._make, self._reuse, self._failures = make, reuse, failures
        first: Any = make()
        self._environments: list[gymnasium.Env[Any, Any]] = [first]
        self._space = first.action_space
        self.count, self.horizon, self.discount = count, horizon, discount
        self.n_observations = math.prod(first.observation_space.shape)
        self.low = np.float64(self._space.low).ravel()
        self.high = np.float64(self._space.high).ravel()
        self.tells_success = False
        self._probe()

    @property
    def n_actions(self) -> int:
        """Length of an action."""
        return self.low.size

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """See :class:`Arena`."""
        while len(self._environments) <= rows.max(initial=-1):
            self._environments.append(self._make())
        seen = np.empty((len(rows), self.n_observations))
        for place, (row, seed) in enumerate(zip(rows, seeds, strict=True)):
            if not self._reuse:
                self._environments[row].close()
                self._environments[row] = self._make()
            observation, _ = self._environments[row].reset(seed=int(seed))
            seen[place] = np.ravel(observation)
        return seen

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """See :class:`Arena`."""
        k = len(rows)
        moves = Moves(
            np.zeros((k, self.n_observations)),
            np.full(k, np.nan),
            np.ones(k, np.bool_),
            np.zeros(k, np.bool_),
            np.zeros(k, np.bool_),
        )
        limited = np.minimum(np.maximum(actions, self.low), self.high).astype(self._space.dtype)
        for place, row in enumerate(rows):
            self._step_one(moves, place, row, limited[place].reshape(self._space.shape))
        return moves

    def close(self) -> None:
        """Close all environments."""
        while self._environments:
            self._environments.pop().close()

    def _step_one(self, moves: Moves, place: int, row: int, action: Any) -> None:
        env = self._environments[row]
        if np.isnan(action).any():
            return
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                observation, reward, terminated, truncated, info = env.step(action)
        except (*simulator_failures(), *self._failures):
            env.close()
            self._environments[row] = self._make()
            return
        flat = np.ravel(observation)
        moves.observations[place] = flat
        moves.over[place] = terminated
        moves.cut[place] = truncated
        if not (math.isfinite(reward) and not np.isnan(flat).any() and not mujoco_warned(env)):
            moves.over[place] = True
            return
        moves.rewards[place] = reward
        moves.success[place] = bool(info.get("is_success", False))

    def _probe(self) -> None:
        """Take a step, which counts for nothing, to see whether the environment tells of success."""
        rows = np.zeros(1, dtype=np.int64)
        self.reset(rows, np.zeros(1, dtype=np.uint64))
        middle = np.where(np.isfinite(self.low + self.high), (self.low + self.high) / 2, 0.0)
        try:
            info = self._environments[0].step(middle.astype(self._space.dtype).reshape(self._space.shape))[4]
        except (*simulator_failures(), *self._failures):
            return
        self.tells_success = "is_success" in info


def make_arena(task: Task, algorithm: str, count: int) -> Arena:
    """Make `count` environments of a task; a ValueError says so if it has none."""
    if isinstance(task, LQR):
        return LQRArena(task, count)
    if isinstance(task, ShipSteering):
        return ShipArena(task, count)
    if isinstance(task, GymnasiumTask):
        return EnvironmentArena(
            lambda: make_environment(task.environment, task.options),
            count,
            task.horizon,
            task.discount,
            policy=task.policy,
            reuse=task.reuse,
            failures=task.failures,
        )
    if type(task).__name__ in ROBOTS:  # by name, since importing the tasks loads a simulator
        from klimb.baselines import robots

        arena: Callable[[Any, int], Arena] = getattr(robots, ROBOTS[type(task).__name__])
        return arena(task, count)
    raise ValueError(
        f"{algorithm} acts step by step in an environment, and {type(task).__name__} has none: it takes a "
        "parameter vector and gives a return. All algorithms but ppo, trpo, reinforce and ars v2-t can learn "
        "that, dr-creps or cma-es for example; an environment of your own is gymnasium:ID."
    )


ROBOTS = {"AirHockey": "AirHockeyArena", "BallStopping": "BallStoppingArena"}
