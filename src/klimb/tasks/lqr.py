"""The linear quadratic regulator of the paper: many gains, of which a few matter.

    x' = A x + B u,   u = W x,   return = - sum_t discount^t (x' Q x + u' R u)

A is the identity and B, Q, R are diagonal. In an ineffective dimension the entries of B and Q are 1e-20: its
state can neither be steered nor does it cost anything, so the best its row of W can do is to stay at zero.

Symbols: n states, W the gains (n, n), P the value matrix (diagonal), b, q, r the diagonals of B, Q, R.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, IntArray, one_of, samples, share, whole
from klimb.tasks.task import episode_seeds

NEARLY_ZERO = 1e-20
PAPER_EFFECTIVE = (0, 1, 8)  # the paper drew {4, 6, 2, 7, 3, 5, 9} as its ineffective dimensions


def riccati(b: FloatArray, q: FloatArray, r: FloatArray, discount: float, horizon: int) -> FloatArray:
    """Diagonal of P (n,): -x' P x is the best return of `horizon` steps from x, by any controller."""
    P = np.zeros_like(q)
    for _ in range(horizon):
        # minimise q x^2 + r u^2 + discount P (x + b u)^2 over u
        P = q + discount * P * r / (r + discount * b * b * P)
    return P


def stationary_gain(b: FloatArray, q: FloatArray, r: FloatArray, discount: float) -> FloatArray:
    """Diagonal of the gain (n,) that is best for an endless episode: u = W x."""
    # The fixed point of the recursion in riccati(): discount b^2 P^2 + c P - q r = 0, P > 0
    c = r * (1 - discount) - discount * q * b * b
    root = np.sqrt(c * c + 4 * discount * b * b * q * r)
    # two forms of one root; each is used where it does not subtract nearly equal numbers
    P = np.where(c > 0, 2 * q * r / (root + np.abs(c)), (root + np.abs(c)) / (2 * discount * b * b))
    return -discount * b * P / (r + discount * b * b * P)


@dataclass(frozen=True)
class LQR:
    """Learn the gains of a linear controller, few of which matter; as it stands, the paper's LQR.

    States and actions are clipped to [-1, 1]; a step's reward uses the state before the step and the clipped
    action. Returns of finite parameters are finite.

    Parameters
    ----------
    n_states
        Number of states and of actions, n.
    n_effective
        How many dimensions can be steered and cost something.
    start
        "fixed": every state starts at .9. "random": uniformly in [-1, 1], drawn anew for every episode from
        its seed, which makes the return noisy.
    horizon
        Steps of an episode.
    discount
        Weight of a step's reward relative to that of the step before it.
    instance
        Seed of the choice of effective dimensions. 10 states, 3 effective, instance 0 is the paper's choice.
    """

    n_states: int = 10
    n_effective: int = 3
    start: str = "fixed"
    horizon: int = 50
    discount: float = 0.9
    instance: int = 0

    def __post_init__(self) -> None:
        n_states = whole("n_states", self.n_states, 1)
        checked = {
            "n_states": n_states,
            "n_effective": whole("n_effective", self.n_effective, 1, n_states),
            "start": one_of("start", self.start, ("fixed", "random")),
            "horizon": whole("horizon", self.horizon, 1),
            "discount": share("discount", self.discount),
            "instance": whole("instance", self.instance, 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def n_parameters(self) -> int:
        """Entries of the gain matrix W, which a parameter vector holds row by row."""
        return self.n_states**2

    @property
    def initial_std(self) -> float:
        """The paper's standard deviation to start with, around W = 0."""
        return 0.3

    @cached_property
    def effective_states(self) -> IntArray:
        """Effective dimensions (n_effective,), ascending."""
        if (self.n_states, self.n_effective, self.instance) == (10, 3, 0):
            return np.array(PAPER_EFFECTIVE, dtype=np.int64)
        rng = np.random.default_rng(self.instance)
        return np.sort(rng.choice(self.n_states, self.n_effective, replace=False)).astype(np.int64)

    @property
    def effective_parameters(self) -> IntArray:
        """Places in theta of the gains that are not zero at the optimum: the effective diagonal entries."""
        return self.effective_states * (self.n_states + 1)

    @cached_property
    def _diagonals(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Diagonals of B, Q and R."""
        b, q, r = np.ones(self.n_states), np.full(self.n_states, 0.1), np.full(self.n_states, 0.9)
        q[0], r[0] = 0.9, 0.1
        ineffective = np.delete(np.arange(self.n_states), self.effective_states)
        b[ineffective] = q[ineffective] = NEARLY_ZERO
        return b, q, r

    @cached_property
    def optimum(self) -> float:
        """The best (expected) return over the horizon, of any controller: -x' P x from the fixed start.

        Clipping does not change it. The best action lies between -x and 0, so it is never clipped and never
        takes a state out of [-1, 1]; and an action that pushes a state over the edge costs more than the one
        that just reaches the edge and leads to the same state.

        The finite horizon does, a little: the best controller slackens its gains toward the end, which a
        constant W cannot. `optimal_parameters` reach the optimum up to rounding over the default 50 steps;
        they miss it by 1e-6 over 20 steps, 7e-4 over 10 and .05 over 3.
        """
        P = riccati(*self._diagonals, self.discount, self.horizon)
        mean_square = (
            0.9**2 if self.start == "fixed" else 1 / 3
        )  # E x^2, alike and uncorrelated in all states
        return -mean_square * float(P.sum())

    @cached_property
    def optimal_parameters(self) -> FloatArray:
        """The gains (n * n,) that are best for an endless episode; see `optimum` for short ones."""
        theta = np.diag(stationary_gain(*self._diagonals, self.discount)).ravel()
        theta.flags.writeable = False
        return theta

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Give the returns (N,) of the gains `theta` (N, n * n); `seed` matters to a random start only."""
        from klimb.tasks._lqr_rollout import rollouts  # here, so that numba loads with the first episode

        theta = np.ascontiguousarray(samples("theta", theta, self.n_parameters))
        starts = self.start_states(episode_seeds(seed, len(theta)))
        returns: FloatArray = rollouts(theta, starts, *self._diagonals, self.horizon, self.discount)
        return returns

    def start_states(self, seeds: ArrayLike) -> FloatArray:
        """States (N, n) in which episodes of these seeds (N,) begin."""
        seeds = np.asarray(seeds)
        starts = np.full((len(seeds), self.n_states), 0.9)
        if self.start == "random":
            for row, seed in zip(starts, seeds, strict=True):
                row[:] = np.random.default_rng(int(seed)).uniform(-1, 1, self.n_states)
        return starts

    def step(self, states: FloatArray, actions: FloatArray) -> tuple[FloatArray, FloatArray]:
        """One step from states (..., n) with actions (..., n): the next states and the rewards (...)."""
        b, q, r = self._diagonals
        u = np.clip(actions, -1.0, 1.0)
        rewards: FloatArray = -(q * states * states + r * u * u).sum(axis=-1)
        return np.clip(states + b * u, -1.0, 1.0), rewards
