"""BallStopping: an arm of seven joints keeps a rolling ball from falling off a table.

The ball starts near one end of a table of 3 m and rolls along -y, beneath the arm's palm, toward the other
end. Left alone it is over the edge after about 1.2 s. Every link of the arm can touch it. The arm's movement
is a ProMP of 7 joints x 20 bases that is added to the start posture; position controllers follow it. The
robot, the table and the contacts are in ``ball_stopping.xml``.

An episode lasts 750 steps of 1/240 s. The reward of a step (d: from the palm to the ball's centre, v: the
ball's speed):

| what is so after the step | reward x 750 |
|---|---|
| the ball fell below a height of .7 m | -20000, and the episode ends |
| it stands still after a touch: v below 1e-4 m/s for 10 steps in a row | 20000, and the episode ends |
| it has been touched in this step or before | -5 (v / 3)^2 |
| none of these | -100 d^2 |

A return is the sum of the rewards times .99 per step. Whole batches (:meth:`BallStopping.evaluate`) and
single steps (:class:`BallStoppingEpisode`) share their physics, which come from ``_mujoco.py``, and their
rewards, which come from :func:`judge`. An episode that the simulator cannot carry to its end has the return
NaN.

The paper's published code differs: it has no penalty for a dropped ball (the paper's text has one, and
without it policies learn to touch the ball always and to stop it never), calls a ball stopped that is slow
for a single step, also where it turns round, and notices a touch by a change of direction.

Reference: M. Memmel, P. Liu, D. Tateo, J. Peters, "Dimensionality Reduction and Prioritized Exploration for
Policy Search", AISTATS 2022; the table's and the ball's constants are those of its ball stopping environment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray, IntArray, one_of, samples, vector, whole
from klimb.policies.promp import ProMP
from klimb.tasks._mujoco import BoolArray, Rows, Simulation, film_of, load_model, roll_out
from klimb.tasks.film import Film
from klimb.tasks.task import episode_seeds

if TYPE_CHECKING:
    import mujoco

HORIZON = 750  # control steps, of one physics step each: 1/240 s
N_JOINTS = 7
N_BASES = 20
REACH = 0.3  # rad that a joint's reference moves per unit of the ProMP
DISCOUNT = 0.99

START_POSTURE = (0.0, 0.4, 0.0, 1.15, 0.0, 1.05, 0.0)
BALL_START = (0.5, 1.0, 0.8)
BALL_SPEED = 3.0

LOWEST = 0.7  # m; a ball whose centre is lower has left the table
SLOWEST = 1e-4  # m/s; what counts as standing still
STILL_STEPS = 10  # in a row: a ball that turns round is slow for a step or two

# How an episode stands.
GOING, STOPPED, DROPPED = 0, 1, 2

# Columns of a recorded state: MuJoCo's positions, then its velocities.
JOINTS, BALL, ORIENTATION = slice(0, 7), slice(7, 10), slice(10, 14)
JOINT_SPEEDS, VELOCITY = slice(14, 21), slice(21, 24)
N_POSITIONS, N_STATES = 14, 27
# Columns of the recorded sensors.
TOUCH, PALM_TO_BALL = 0, slice(1, 4)

# Steps between two looks at the episodes: fewer waste less on those that are over, more cost less looking.
# The untouched ball has fallen at step 318 = 6 x 53, which ends most episodes of a search that just started.
SEGMENT = 53
# Episodes whose controls are in memory at once; no return depends on it.
CHUNK = 64


def model() -> mujoco.MjModel:
    """Return the compiled ``ball_stopping.xml``, one for all: do not change it."""
    return load_model("ball_stopping.xml")


def squared_length(vectors: FloatArray) -> FloatArray:
    """Sum of squares: (..., 3) -> (...)."""
    # written out, so that the order of the sum is the same for every shape
    x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
    square: FloatArray = x * x + y * y + z * z
    return square


def ball_speed(states: FloatArray) -> FloatArray:
    """Speed of the ball's centre in m/s: states (..., 27) -> (...)."""
    speed: FloatArray = np.sqrt(squared_length(states[..., VELOCITY]))
    return speed


def ball_height(states: FloatArray) -> FloatArray:
    """Height of the ball's centre in m: states (..., 27) -> (...)."""
    height: FloatArray = states[..., BALL.stop - 1]
    return height


def squared_distance(sensors: FloatArray) -> FloatArray:
    """|palm - ball|^2 at the beginning of a step: sensors (..., 4) -> (...)."""
    return squared_length(sensors[..., PALM_TO_BALL])


def touching(sensors: FloatArray) -> BoolArray:
    """Whether any link touched the ball during a step: sensors (..., 4) -> (...)."""
    touch: BoolArray = sensors[..., TOUCH] > 0
    return touch


def observation(states: FloatArray) -> FloatArray:
    """Joint positions and velocities, ball position and orientation: states (..., 27) -> (..., 21).

    The paper's observation: 7 + 7 numbers of the arm, 3 of the ball's centre, and a quaternion.
    """
    parts = (states[..., part] for part in (JOINTS, JOINT_SPEEDS, BALL, ORIENTATION))
    return np.concatenate(tuple(parts), axis=-1)


def joint_references(actions: FloatArray) -> FloatArray:
    """What the position controllers shall reach, in rad, within the joints' ranges: (..., 7) -> (..., 7)."""
    lowest, highest = model().actuator_ctrlrange.T
    references: FloatArray = np.clip(START_POSTURE + REACH * actions, lowest, highest)
    return references


class Memory(NamedTuple):
    """What the reward knows of an episode's past; each of shape (M,)."""

    touched: BoolArray
    """Has the ball been touched?"""
    still: IntArray
    """For how many steps in a row has the touched ball been slow?"""


class Verdict(NamedTuple):
    """What :func:`judge` says of a stretch of K steps of M episodes."""

    rewards: FloatArray
    """(M, K), 0 after the end of the episode."""
    outcome: IntArray
    """(M,): GOING, STOPPED or DROPPED."""
    memory: Memory
    """To go on with."""


def no_memory(count: int) -> Memory:
    """Return the memory of `count` episodes that are about to start."""
    return Memory(np.zeros(count, dtype=np.bool_), np.zeros(count, dtype=np.int64))


def judge(states: FloatArray, sensors: FloatArray, memory: Memory) -> Verdict:
    """Reward the steps of episodes that are going on, and say which of them are over.

    Parameters
    ----------
    states
        (M, K, 27): after each step.
    sensors
        (M, K, 4): of each step; see ``_mujoco.py`` for their time.
    memory
        Of the steps before these.
    """
    count = states.shape[1]
    step = np.arange(1, count + 1)
    speed = ball_speed(states)
    touched = np.logical_or.accumulate(touching(sensors), axis=1) | memory.touched[:, None]
    slow = touched & (speed < SLOWEST)
    last_move = np.maximum.accumulate(np.where(slow, 0, step), axis=1)
    # slow steps in a row up to each step; a row that reaches back to the first continues an earlier one
    still = step - last_move + np.where(last_move == 0, memory.still[:, None], 0)
    stopped = still >= STILL_STEPS
    dropped = ball_height(states) < LOWEST

    rewards = np.where(touched, -5 * (speed / BALL_SPEED) ** 2, -100 * squared_distance(sensors))
    rewards = np.where(stopped, 20000.0, rewards)
    rewards = np.where(dropped, -20000.0, rewards) / HORIZON

    over = stopped | dropped
    ended = over.any(axis=1)
    last = np.where(ended, over.argmax(axis=1), count - 1)
    rewards[step > last[:, None] + 1] = 0.0
    fell = dropped[np.arange(len(last)), last]
    outcome = np.where(ended, np.where(fell, DROPPED, STOPPED), GOING)
    return Verdict(rewards, outcome, Memory(touched[:, -1], still[:, -1]))


def discounted(rewards: FloatArray) -> FloatArray:
    """Returns (N,) of the rewards (N, T) of whole episodes."""
    # along a contiguous axis numpy adds up each row by itself, in the same order in every batch
    weighted = np.ascontiguousarray(rewards) * DISCOUNT ** np.arange(rewards.shape[1])
    total: FloatArray = weighted.sum(axis=1)
    return total


@dataclass(frozen=True)
class BallStopping:
    """Learn a movement of the arm that stops the ball and keeps it on the table.

    Parameters
    ----------
    ball
        "fixed": the ball starts at x = .5 with 3 m/s along the table. "random": x, speed and direction are
        drawn anew for every episode from its seed, which makes the return noisy.
    x_spread
        Of a random ball: x is uniform in .5 -+ x_spread (m).
    speed_spread
        Of a random ball: the speed is uniform in 3 (1 -+ speed_spread) m/s.
    direction_spread
        Of a random ball: the direction is uniform in -+ direction_spread (rad). The paper's published code
        has a wider random ball: spreads of .1, 1/3 and 10 degrees.
    threads
        Threads that simulate; no return depends on it.
    """

    ball: str = "fixed"
    x_spread: float = 0.05
    speed_spread: float = 0.1
    direction_spread: float = 0.0
    threads: int = 1

    def __post_init__(self) -> None:
        one_of("ball", self.ball, ("fixed", "random"))
        # a ball of .2 m that starts within these limits lies on the table and rolls along it
        for name, limit in (("x_spread", 0.5), ("speed_spread", 0.99), ("direction_spread", math.pi / 2)):
            value = getattr(self, name)
            if not (isinstance(value, (int, float, np.integer, np.floating)) and 0 <= value <= limit):
                raise ValueError(f"{name} must be a number from 0 to {limit:.4g}, but {value!r} came.")
            object.__setattr__(self, name, float(value))
        object.__setattr__(self, "threads", whole("threads", self.threads, 1))

    @property
    def n_parameters(self) -> int:
        """Weights of the ProMP."""
        return self.policy.n_parameters

    @property
    def optimum(self) -> None:
        """Not known."""
        return

    @property
    def initial_std(self) -> float:
        """The paper's standard deviation to start with, around zero."""
        return 1.0

    @cached_property
    def policy(self) -> ProMP:
        """What turns parameters into actions (N, 750, 7)."""
        return ProMP(n_joints=N_JOINTS, n_bases=N_BASES, horizon=HORIZON)

    def initial_state(self, rng: np.random.Generator) -> FloatArray:
        """State (27,) that an episode starts from; a fixed ball draws nothing from `rng`."""
        x, speed, direction = BALL_START[0], BALL_SPEED, 0.0
        if self.ball == "random":
            x += self.x_spread * rng.uniform(-1, 1)
            speed *= 1 + self.speed_spread * rng.uniform(-1, 1)
            direction += self.direction_spread * rng.uniform(-1, 1)
        state = np.zeros(N_STATES)
        state[JOINTS] = START_POSTURE
        state[BALL] = x, *BALL_START[1:]
        state[ORIENTATION] = 1.0, 0.0, 0.0, 0.0
        state[VELOCITY] = speed * math.sin(direction), -speed * math.cos(direction), 0.0
        return state

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
        """Give the returns (N,) of the parameter vectors `theta` (N, 140).

        Parameters
        ----------
        theta
            One parameter vector per row.
        seed
            One for the batch or one per episode; matters to a random ball only.
        return_success
            Also give (N,) bool: was the ball stopped?
        """
        theta = samples("theta", theta, self.n_parameters)
        seeds = episode_seeds(seed, len(theta))
        returns, success = np.empty(len(theta)), np.zeros(len(theta), dtype=np.bool_)
        for first in range(0, len(theta), CHUNK):
            part = slice(first, first + CHUNK)
            returns[part], success[part] = self._evaluate(theta[part], seeds[part])
        return (returns, success) if return_success else returns

    def _evaluate(self, theta: FloatArray, seeds: NDArray[np.uint64]) -> tuple[FloatArray, BoolArray]:
        """Returns and successes of a few episodes, all in memory."""
        rewards = np.zeros((len(theta), HORIZON))
        outcomes = np.full(len(theta), GOING)
        memory = no_memory(len(theta))

        def score(rows: Rows, start: int, states: FloatArray, sensors: FloatArray) -> BoolArray:
            verdict = judge(states, sensors, Memory(memory.touched[rows], memory.still[rows]))
            rewards[rows, start : start + states.shape[1]] = verdict.rewards
            outcomes[rows] = verdict.outcome
            memory.touched[rows], memory.still[rows] = verdict.memory
            going: BoolArray = verdict.outcome == GOING
            return going

        initial = np.empty((len(theta), N_STATES))
        for row, seed in zip(initial, seeds, strict=True):
            row[:] = self.initial_state(np.random.default_rng(seed))
        references = joint_references(self.policy.trajectory(theta))
        failed = roll_out(model(), initial, references, score, segment=SEGMENT, threads=self.threads)
        return np.where(failed, np.nan, discounted(rewards)), (outcomes == STOPPED) & ~failed

    def trajectory(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Follow one episode, to draw it or play it back.

        Parameters
        ----------
        theta
            One parameter vector (140,).
        seed
            As `evaluate` takes it for one episode.

        Returns
        -------
        numpy.ndarray
            (T + 1, 14): MuJoCo's ``qpos`` at the start and after each of the episode's T steps, 240 a second.
        """
        theta = samples("theta", vector("theta", theta)[None], self.n_parameters)
        (episode_seed,) = episode_seeds(seed, 1)
        episode = BallStoppingEpisode(self)
        episode.reset(np.random.default_rng(episode_seed))
        path = [episode.state]
        for action in self.policy.trajectory(theta)[0]:
            _, _, over = episode.step(action)
            path.append(episode.state)
            if over:
                break
        return np.array(path)[:, :N_POSITIONS]

    def film(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, width: int = 480, height: int = 360
    ) -> Film:
        """Film the episode of one `theta` (140,); it needs OpenGL."""
        return film_of(model(), self.trajectory(theta, seed), 240.0, "overview", width, height)


class BallStoppingEpisode:
    """One episode step by step, with any policy: what an environment holds.

    The numbers are those of :meth:`BallStopping.evaluate` to the last bit. Neither the horizon nor the
    discount is applied.

    Parameters
    ----------
    task
        Says how an episode starts.

    Attributes
    ----------
    state
        (27,): positions and velocities now.
    outcome
        GOING, STOPPED or DROPPED.
    simulation
        Holds MuJoCo's model and data, for a renderer.
    """

    def __init__(self, task: BallStopping) -> None:
        self.task = task
        self.simulation = Simulation(model())
        self.reset(np.random.default_rng(0))

    @property
    def touched(self) -> bool:
        """Whether any link has touched the ball in this episode."""
        return bool(self._memory.touched[0])

    @property
    def failed(self) -> bool:
        """Whether the simulation has broken down; rewards are NaN from then on."""
        return self.simulation.failed

    def reset(self, rng: np.random.Generator) -> FloatArray:
        """Start an episode, its ball drawn from `rng`; the first observation (21,)."""
        return self.start(self.task.initial_state(rng))

    def start(self, state: FloatArray) -> FloatArray:
        """Start an episode at a given state (27,); the first observation (21,)."""
        self.simulation.reset(state)
        self.state = state.copy()
        self.outcome = GOING
        self._memory = no_memory(1)
        return observation(state)

    def step(self, action: ArrayLike) -> tuple[FloatArray, float, bool]:
        """Move for one control step; give the observation (21,) after it, the reward, and whether it ended.

        If the simulation breaks down, the reward is NaN and the episode is over.

        Parameters
        ----------
        action
            (7,), as the ProMP gives it: the joints' references are START_POSTURE + REACH * action.
        """
        action = vector("action", action)
        if action.size != N_JOINTS:
            raise ValueError(f"action must have {N_JOINTS} entries, one per joint, but {action.size} came.")
        states, sensors = self.simulation.step(joint_references(action))
        verdict = judge(states[None], sensors[None], self._memory)
        self.state, self.outcome, self._memory = states[-1], int(verdict.outcome[0]), verdict.memory
        if self.failed:
            return observation(self.state), math.nan, True
        return observation(self.state), float(verdict.rewards[0, 0]), self.outcome != GOING
