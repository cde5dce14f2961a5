"""Hit a puck into the opponent's goal with a planar arm of three joints.

The arm stands at the left end of an air hockey table and looks to the right. An episode lasts 120 control
steps of 1/60 s. A movement primitive gives three torques per step; the puck comes toward the robot and passes
beside the mallet, so that doing nothing misses it. The physics are in air_hockey.xml.

A step's reward, at the state after the step (touches and goals are noticed in between, too):

- until the mallet touches the puck: exp(-8 (d - .08)) cos(a), where d is the distance between their centres
  and a the angle between the way from mallet to puck and the way from puck to goal; 0 if a is not acute;
- from then on: 1 + what that was when they met + .1 times the puck's velocity toward the goal's end;
- for a goal, which ends the episode: 300. The remaining steps would pay about 2.1 each to an arm that stays
  with the puck: at 150, the published value, not scoring pays more;
- for a mallet that leaves the table, which ends the episode, goal or not: -10;
- for an own goal, which ends the episode: 0;
- always: minus .001 times the length of the primitive's output.

A return is the sum of the rewards times .99 per step.

The published sources differ in the puck: it comes toward the robot in the paper's text, and lies still in its
code. Both are here, and a third that comes a little differently every time.

Reference: M. Memmel, P. Liu, D. Tateo, J. Peters, "Dimensionality Reduction and Prioritized Exploration for
Policy Search", AISTATS 2022; the table's and the puck's constants are those of its air hockey environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, overload

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray, one_of, samples, vector, whole
from klimb.policies.promp import ProMP
from klimb.tasks._mujoco import BoolArray, Rows, Simulation, film_of, load_model, roll_out
from klimb.tasks.film import Film
from klimb.tasks.task import episode_seeds

MODEL = "air_hockey.xml"
HORIZON = 120
CONTROL_RATE = 60.0  # control steps per second
SUBSTEPS = 16  # physics steps of 1/960 s per control step
DISCOUNT = 0.99

# Geometry, in metres; a test compares it with the model's.
HALF_LENGTH, HALF_WIDTH, GOAL_HALF_WIDTH = 0.98, 0.51, 0.25
BASE_X = -1.51
LINK_1, LINK_2, LINK_3 = 0.5, 0.4, 0.4
TOUCHING = 0.05 + 0.03165  # between the centres of mallet and puck

TORQUE_SCALE, TORQUE_LIMIT = 3.0, 10.0  # N m per unit of action, and at most

# A state is the positions of shoulder, elbow, wrist, puck x and puck y, then their velocities.
PUCK_X, PUCK_Y, PUCK_VX = 3, 4, 8
ARM_AT_START = (-0.9273, 0.9273, math.pi / 2)  # mallet at (-.81, 0)

# How an episode stands.
PLAYING, GOAL, OWN_GOAL, OFF_TABLE = 0, 1, 2, 3

NOT_TOUCHED = -1.0  # any number below 0: an approach is never negative


# ---------------------------------------------------------------------------------- questions to the physics


@njit(cache=True, nogil=True)
def mallet_position(state: FloatArray) -> tuple[float, float]:
    """Centre of the mallet on the table."""
    angle_1 = state[0]
    angle_2 = angle_1 + state[1]
    angle_3 = angle_2 + state[2]
    x = BASE_X + LINK_1 * math.cos(angle_1) + LINK_2 * math.cos(angle_2) + LINK_3 * math.cos(angle_3)
    y = LINK_1 * math.sin(angle_1) + LINK_2 * math.sin(angle_2) + LINK_3 * math.sin(angle_3)
    return x, y


@njit(cache=True, nogil=True)
def mallet_off_table(state: FloatArray) -> bool:
    """Whether the mallet's centre is beyond an edge of the table."""
    x, y = mallet_position(state)
    return abs(x) > HALF_LENGTH or abs(y) > HALF_WIDTH


@njit(cache=True, nogil=True)
def goal_crossed(state: FloatArray) -> int:
    """GOAL or OWN_GOAL if the puck's centre is behind that goal's line, else PLAYING."""
    if abs(state[PUCK_Y]) < GOAL_HALF_WIDTH:
        if state[PUCK_X] > HALF_LENGTH:
            return GOAL
        if state[PUCK_X] < -HALF_LENGTH:
            return OWN_GOAL
    return PLAYING


@njit(cache=True, nogil=True)
def approach(state: FloatArray) -> float:
    """How near the mallet is to the puck and how well it stands behind it, from 0 to about 1."""
    mallet_x, mallet_y = mallet_position(state)
    to_puck_x, to_puck_y = state[PUCK_X] - mallet_x, state[PUCK_Y] - mallet_y
    to_goal_x, to_goal_y = HALF_LENGTH - state[PUCK_X], -state[PUCK_Y]
    distance = math.sqrt(to_puck_x**2 + to_puck_y**2)
    lengths = distance * math.sqrt(to_goal_x**2 + to_goal_y**2)
    along = to_puck_x * to_goal_x + to_puck_y * to_goal_y
    if along <= 0.0 or lengths == 0.0:
        return 0.0
    # a fast mallet sinks into the puck a little: that must not pay
    value: float = math.exp(-8.0 * (max(distance, TOUCHING) - 0.08)) * min(along / lengths, 1.0)
    return value


# -------------------------------------------------------------------------------------------------- reward


@njit(cache=True, nogil=True)
def judge(
    states: FloatArray, touches: FloatArray, action: FloatArray, stroke: float
) -> tuple[float, float, int]:
    """Judge one control step.

    Parameters
    ----------
    states
        (SUBSTEPS, 10): the states after each physics step.
    touches
        (SUBSTEPS, 1): above 0 where mallet and puck touched during it.
    action
        (3,): the output of the policy.
    stroke
        The approach when mallet and puck first met, below 0 if they have not.

    Returns
    -------
    reward, stroke, outcome
        The stroke is to be handed to the next step; any outcome but PLAYING ends the episode.
    """
    outcome = PLAYING
    for substep in range(states.shape[0]):
        if stroke < 0.0 and touches[substep, 0] > 0.0:
            stroke = approach(states[substep])
        if outcome == PLAYING:
            outcome = goal_crossed(states[substep])
    last = states[-1]
    if mallet_off_table(last):
        outcome = OFF_TABLE
    reward = 0.0
    if outcome == OFF_TABLE:
        reward = -10.0
    elif outcome == GOAL:
        reward = 300.0
    elif outcome == PLAYING and stroke < 0.0:
        reward = approach(last)
    elif outcome == PLAYING:
        reward = 1.0 + stroke + 0.1 * last[PUCK_VX]
    reward -= 0.001 * math.sqrt(action[0] ** 2 + action[1] ** 2 + action[2] ** 2)
    return reward, stroke, outcome


@njit(cache=True, nogil=True)
def _judge_segment(
    rows: Rows,
    start: int,
    states: FloatArray,
    touches: FloatArray,
    actions: FloatArray,
    discounts: FloatArray,
    strokes: FloatArray,
    returns: FloatArray,
    outcomes: NDArray[np.int64],
) -> None:
    """Judge the control steps from `start` on of the episodes `rows`; update the last three, (N,) each."""
    for place in range(rows.size):
        row = rows[place]
        for step in range(states.shape[1] // SUBSTEPS):
            part = slice(step * SUBSTEPS, (step + 1) * SUBSTEPS)
            reward, strokes[row], outcomes[row] = judge(
                states[place, part], touches[place, part], actions[row, start + step], strokes[row]
            )
            returns[row] += discounts[start + step] * reward
            if outcomes[row] != PLAYING:
                break


def judge_step(
    states: FloatArray, touches: FloatArray, actions: FloatArray, strokes: FloatArray
) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
    """:func:`judge` for one control step of N episodes: states (N, SUBSTEPS, 10), actions (N, 3)."""
    count = len(states)
    rewards, strokes, outcomes = np.zeros(count), strokes.copy(), np.zeros(count, dtype=np.int64)
    once = np.ones(1)
    rows = np.arange(count)
    _judge_segment(rows, 0, states, touches, actions[:, None], once, strokes, rewards, outcomes)
    return rewards, strokes, outcomes


# --------------------------------------------------------------------------------------- start and actuation


def initial_state(puck: str, rng: np.random.Generator) -> FloatArray:
    """State (10,) at the start; only a "random" puck draws from `rng`."""
    x, y, velocity_x, velocity_y = (-0.45, 0.0, 0.0, 0.0) if puck == "still" else (-0.2, 0.15, -0.6, 0.0)
    if puck == "random":
        y += rng.uniform(-0.05, 0.05)
        velocity_x *= rng.uniform(0.9, 1.1)
        velocity_y = rng.uniform(-0.05, 0.05)
    return np.array([*ARM_AT_START, x, y, 0.0, 0.0, 0.0, velocity_x, velocity_y])


def torques(actions: FloatArray) -> FloatArray:
    """Torques (..., 3) in N m that the motors apply for actions (..., 3)."""
    limited: FloatArray = np.clip(TORQUE_SCALE * actions, -TORQUE_LIMIT, TORQUE_LIMIT)
    return limited


@dataclass(frozen=True)
class AirHockey:
    """Learn the 3 x 30 weights of a movement primitive that shoots a goal.

    Parameters
    ----------
    puck
        "incoming": it comes toward the robot, always the same way. "random": so does this one, but its
        place, speed and direction vary with the episode's seed. "still": it lies before the mallet.
    threads
        Threads that simulate a batch. Returns do not depend on it.
    """

    puck: str = "incoming"
    threads: int = 1

    def __post_init__(self) -> None:
        one_of("puck", self.puck, ("incoming", "random", "still"))
        whole("threads", self.threads, 1)

    @property
    def n_parameters(self) -> int:
        """Weights of the primitive."""
        return self.policy.n_parameters

    @property
    def optimum(self) -> None:
        """Not known."""
        return

    @property
    def initial_std(self) -> float:
        """The paper's standard deviation to start with, around 0."""
        return 1.0

    @cached_property
    def policy(self) -> ProMP:
        """What turns parameters into actions."""
        return ProMP(n_joints=3, n_bases=30, horizon=HORIZON)

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[False] = False
    ) -> FloatArray: ...

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[True]
    ) -> tuple[FloatArray, BoolArray]: ...

    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: bool = False
    ) -> FloatArray | tuple[FloatArray, BoolArray]:
        """Give the returns (N,) of the weights `theta` (N, 90); `seed` matters to a random puck only.

        With `return_success`, give also (N,): did the episode end with a goal? Where the simulation broke
        down, the return is NaN.
        """
        actions = self.policy.trajectory(samples("theta", theta, self.n_parameters))
        count = len(actions)
        initial = self._initial_states(seed, count)
        returns, strokes = np.zeros(count), np.full(count, NOT_TOUCHED)
        outcomes = np.full(count, PLAYING, dtype=np.int64)
        discounts = DISCOUNT ** np.arange(HORIZON, dtype=np.float64)

        def score(rows: Rows, start: int, states: FloatArray, touches: FloatArray) -> BoolArray:
            _judge_segment(rows, start, states, touches, actions, discounts, strokes, returns, outcomes)
            playing: BoolArray = outcomes[rows] == PLAYING
            return playing

        model = load_model(MODEL, drawn=False)
        failed = roll_out(model, initial, torques(actions), score, substeps=SUBSTEPS, threads=self.threads)
        returns[failed] = np.nan
        return (returns, (outcomes == GOAL) & ~failed) if return_success else returns

    def trajectory(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Positions over time, to look at: (steps + 1, 5), up to the end of the episode of one `theta` (90,).

        `seed` is what `evaluate` takes for one episode. The columns are the model's ``qpos``: shoulder,
        elbow, wrist, puck x, puck y; the rows are 1/60 s apart.
        """
        weights = vector("theta", theta)
        actions = self.policy.trajectory(samples("theta", weights[None], self.n_parameters))[0]
        game = AirHockeyGame(self.puck)
        path = [game.start(self._initial_states(seed, 1)[0])]
        for action in actions:
            state, _, ended = game.step(action)
            path.append(state)
            if ended:
                break
        return np.array(path)[:, :5]

    def film(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, width: int = 640, height: int = 320
    ) -> Film:
        """Film the episode of one `theta` (90,), seen from above; it needs OpenGL."""
        path = self.trajectory(theta, seed)
        return film_of(load_model(MODEL), path, CONTROL_RATE, "above", width, height)

    def _initial_states(self, seed: int | ArrayLike, count: int) -> FloatArray:
        seeds = episode_seeds(seed, count)
        if self.puck != "random":  # one for all: making a generator costs more than drawing from it
            return np.tile(initial_state(self.puck, np.random.default_rng(0)), (count, 1))
        states = [initial_state(self.puck, np.random.default_rng(episode_seed)) for episode_seed in seeds]
        return np.array(states).reshape(count, 10)


class AirHockeyGame:
    """One episode, step by step, with any policy: what an environment holds.

    The numbers are those of :meth:`AirHockey.evaluate` to the last bit. Neither the horizon nor the discount
    is applied.

    Parameters
    ----------
    puck
        As for :class:`AirHockey`.

    Attributes
    ----------
    simulation
        Holds MuJoCo's model and data, for a renderer.
    outcome
        PLAYING, GOAL, OWN_GOAL or OFF_TABLE.
    """

    def __init__(self, puck: str = "incoming") -> None:
        self.puck = one_of("puck", puck, ("incoming", "random", "still"))
        self.simulation = Simulation(load_model(MODEL), SUBSTEPS)
        self.outcome = PLAYING
        self._stroke = NOT_TOUCHED

    def reset(self, rng: np.random.Generator) -> FloatArray:
        """Start an episode; its first state (10,)."""
        return self.start(initial_state(self.puck, rng))

    def start(self, state: FloatArray) -> FloatArray:
        """Start an episode at a given state (10,)."""
        self.simulation.reset(state)
        self.outcome = PLAYING
        self._stroke = NOT_TOUCHED
        return state

    def step(self, action: ArrayLike) -> tuple[FloatArray, float, bool]:
        """Apply an action (3,) for one control step; give the new state, the reward, and whether it ended.

        If the simulation breaks down, the reward is NaN and the episode is over.
        """
        action = vector("action", action)
        if action.size != 3:
            raise ValueError(f"action must have 3 entries, one per joint, but {action.size} came.")
        states, touches = self.simulation.step(torques(action))
        reward, self._stroke, self.outcome = judge(states, touches, action, self._stroke)
        if self.simulation.failed:
            return states[-1], math.nan, True
        return states[-1], reward, self.outcome != PLAYING
