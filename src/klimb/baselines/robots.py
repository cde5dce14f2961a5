"""Arenas of the two robots: all episodes of a batch step at once, with the numbers of their environments."""

from __future__ import annotations

import numpy as np

from klimb._validation import FloatArray, IntArray
from klimb.baselines.stepping import Moves, Seeds
from klimb.tasks import air_hockey, ball_stopping
from klimb.tasks._mujoco import BoolArray, Simulations, load_model
from klimb.tasks.environments import ROBOT_SCALE


class AirHockeyArena:
    """Air hockey, as :class:`klimb.tasks.environments.AirHockeyEnvironment` has it."""

    tells_success = True
    n_observations, n_actions = 10, 3
    horizon, discount = air_hockey.HORIZON, air_hockey.DISCOUNT
    policy = None

    def __init__(self, task: air_hockey.AirHockey, count: int) -> None:
        self.count = count
        self.low, self.high = -np.ones(3), np.ones(3)
        self._puck = task.puck
        model = load_model(air_hockey.MODEL, drawn=False)
        self._simulations = Simulations(model, count, air_hockey.SUBSTEPS, task.threads)
        self._strokes = np.zeros(count)

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """See :class:`~klimb.baselines.stepping.Arena`."""
        starts = [air_hockey.initial_state(self._puck, np.random.default_rng(seed)) for seed in seeds]
        states = np.array(starts).reshape(-1, self.n_observations)
        self._simulations.reset(rows, states)
        self._strokes[rows] = air_hockey.NOT_TOUCHED
        return states

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """See :class:`~klimb.baselines.stepping.Arena`."""
        moves, unknown = _within_limits(actions)
        controls = air_hockey.torques(moves)[:, None]
        states, touches, broken = self._simulations.step(rows, controls)
        rewards, strokes, outcomes = air_hockey.judge_step(states, touches, moves, self._strokes[rows])
        self._strokes[rows] = strokes
        won = outcomes == air_hockey.GOAL
        return _moves(states[:, -1], rewards, outcomes != air_hockey.PLAYING, won, broken | unknown)


class BallStoppingArena:
    """Ball stopping, as :class:`klimb.tasks.environments.BallStoppingEnvironment` has it."""

    tells_success = True
    n_observations, n_actions = 21, ball_stopping.N_JOINTS
    horizon, discount = ball_stopping.HORIZON, ball_stopping.DISCOUNT
    policy = None

    def __init__(self, task: ball_stopping.BallStopping, count: int) -> None:
        self.count = count
        self.low, self.high = -np.ones(self.n_actions), np.ones(self.n_actions)
        self._task = task
        self._simulations = Simulations(ball_stopping.model(), count, threads=task.threads)
        self._memory = ball_stopping.no_memory(count)

    def reset(self, rows: IntArray, seeds: Seeds) -> FloatArray:
        """See :class:`~klimb.baselines.stepping.Arena`."""
        starts = [self._task.initial_state(np.random.default_rng(seed)) for seed in seeds]
        states = np.array(starts).reshape(-1, ball_stopping.N_STATES)
        self._simulations.reset(rows, states)
        for kept, fresh in zip(self._memory, ball_stopping.no_memory(len(rows)), strict=True):
            kept[rows] = fresh
        return ball_stopping.observation(states)

    def step(self, rows: IntArray, actions: FloatArray) -> Moves:
        """See :class:`~klimb.baselines.stepping.Arena`."""
        moves, unknown = _within_limits(actions)
        controls = ball_stopping.joint_references(moves)[:, None]
        states, sensors, broken = self._simulations.step(rows, controls)
        memory = ball_stopping.Memory(self._memory.touched[rows], self._memory.still[rows])
        verdict = ball_stopping.judge(states, sensors, memory)
        for kept, fresh in zip(self._memory, verdict.memory, strict=True):
            kept[rows] = fresh
        outcomes, rewards = verdict.outcome, verdict.rewards[:, 0]
        seen = ball_stopping.observation(states[:, -1])
        stopped = outcomes == ball_stopping.STOPPED
        return _moves(seen, rewards, outcomes != ball_stopping.GOING, stopped, broken | unknown)


def _within_limits(actions: FloatArray) -> tuple[FloatArray, BoolArray]:
    """Actions (N, a) in units of the task, and (N,): which of them are no numbers."""
    unknown: BoolArray = np.logical_or.reduce(np.isnan(actions), axis=1)
    known = np.where(unknown[:, None], 0.0, actions)
    return ROBOT_SCALE * np.minimum(np.maximum(known, -1.0), 1.0), unknown


def _moves(
    seen: FloatArray, rewards: FloatArray, over: BoolArray, success: BoolArray, broken: BoolArray
) -> Moves:
    """What a step gave; a broken simulation ends its episode without a reward."""
    never = np.zeros_like(broken)
    return Moves(seen, np.where(broken, np.nan, rewards), over | broken, never, success & ~broken)
