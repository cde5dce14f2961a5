"""Steer a ship through a gate, with a tile-coded policy of 450 parameters.

A ship of constant speed crosses a square field. The action is the turning rate that is asked for; the actual
rate follows it with a lag. One control step is three Euler substeps of

    x       += v sin(heading) dt
    y       += v cos(heading) dt
    heading += rate dt                      (kept in [-pi, pi))
    rate    += (action - rate) dt / lag     (action clipped to the rate limit)

Each control step costs 1; the step through the gate costs nothing and ends the episode; the step out of the
field costs 100 and ends it.

With the discount .99 a cost of 1 per step for ever is worth 100, so an episode returns -100 whenever the ship
leaves the field, and as good as that if it circles until the horizon: the return says nothing but when the
gate was reached. Returns are therefore computed backwards from the end (R <- -1 + discount R), which has -100
as its exact fixed point: ships that leave the field tie exactly, and are not ranked by rounding errors.

References: M. Ghavamzadeh, S. Mahadevan, "Hierarchical Policy Gradient Algorithms", ICML 2003; the field of
150 x 150 and its gate are MushroomRL's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray, numbers, one_of, samples, share, vector, whole
from klimb.policies.tiles import Tiles
from klimb.tasks.film import Film
from klimb.tasks.task import episode_seeds

BoolArray = NDArray[np.bool_]


class Ship(NamedTuple):
    """The numbers of the field, the gate and the ship."""

    field: float = 150.0
    gate_x0: float = 100.0
    gate_y0: float = 120.0
    gate_x1: float = 120.0
    gate_y1: float = 100.0
    speed: float = 3.0
    lag: float = 5.0
    dt: float = 0.2
    substeps: int = 3
    rate_limit: float = math.pi / 12


SHIP = Ship()
OUT_COST = 100.0
FIXED_START = (0.0, 0.0, math.pi / 2, 0.0)

# Control steps of the fastest way from the fixed start through the gate, whatever the policy. Progress to the
# gate's line x + y = 220 is the sum of v dt sqrt(2) cos(heading - pi/4) over the substeps, and headings are
# linear in the actions: a concave maximisation as long as the heading stays within pi/2 of pi/4. (Turning
# further away and back loses more than the 4 that the straight line has to spare in 88 steps.) The maximum is
# 219.63 in 88 steps and 222.18 in 89; that ship is at x - y = 13.7 by then, where the gate reaches to 20, and
# has not been below y = 0. test_ship_steering.py solves the problem.
FASTEST = 89


def _compiled() -> ModuleType:
    from klimb.tasks import _ship_rollout

    return _ship_rollout


def step(state: ArrayLike, action: float) -> tuple[FloatArray, float, bool, bool]:
    """One control step of the ship.

    Parameters
    ----------
    state
        x, y, heading in [-pi, pi), turning rate; shape (4,). It is also the observation.
    action
        Turning rate asked for; clipped to +-pi/12.

    Returns
    -------
    state : FloatArray
        The next one, shape (4,); a ship that left the field is put back on its border.
    reward : float
        -1, 0 through the gate, -100 out of the field, NaN if the action is not finite.
    terminated : bool
        Whether the episode is over.
    success : bool
        Whether the ship went through the gate.
    """
    compiled = _compiled()
    values = numbers("state", state)
    if values.shape != (4,):
        raise ValueError(f"state must be (x, y, heading, rate), shape (4,), but its shape is {values.shape}.")
    after, outcome = compiled.control_step(SHIP, tuple(values.tolist()), float(action))
    reward = {compiled.SAILING: -1.0, compiled.GATE: 0.0, compiled.OUT: -OUT_COST}.get(outcome, math.nan)
    return np.array(after), reward, outcome != compiled.SAILING, outcome == compiled.GATE


def _backwards(last: float, discount: float, count: int) -> FloatArray:
    """Return of k steps at -1 before the reward `last`, for k = 0..count; shape (count + 1,)."""
    returns = np.empty(count + 1)
    returns[0] = last
    for k in range(count):
        returns[k + 1] = -1 + discount * returns[k]
    return returns


@dataclass(frozen=True)
class ShipSteering:
    """Steer a ship through a gate; the parameters are the weights of a tile-coded policy.

    Parameters
    ----------
    start
        "fixed": at (0, 0), heading along the x axis, not turning. "random": position, heading and turning
        rate uniform over the field, [-pi, pi) and +-pi/12. The paper's text says random, but its curves, its
        line of the optimal return and its code are of the fixed start, and only there an optimum is known;
        some random starts cannot be won at all (a ship near the border that heads for it). So "fixed" is
        the default.
    horizon
        Control steps after which an episode ends.
    discount
        Discount factor per control step.
    tiles, n_tilings
        Tiles along x, y and heading, and overlapping grids of them; 3 x (5 x 5 x 6) = 450 parameters.

    Notes
    -----
    The policy (:attr:`policy`) sees x, y and the heading, not the turning rate. The gate counts as crossed
    when the straight line between the positions of two consecutive substeps (.6 apart) meets it, from either
    side.
    """

    start: str = "fixed"
    horizon: int = 5000
    discount: float = 0.99
    tiles: tuple[int, int, int] = (5, 5, 6)
    n_tilings: int = 3

    initial_std = 0.07

    def __post_init__(self) -> None:
        one_of("start", self.start, ("fixed", "random"))
        whole("horizon", self.horizon, 1)
        share("discount", self.discount)
        object.__setattr__(self, "tiles", tuple(whole("tiles", count, 1) for count in self.tiles))
        if len(self.tiles) != 3:
            raise ValueError(f"tiles must be the numbers along x, y and heading, but {self.tiles} came.")
        whole("n_tilings", self.n_tilings, 1)

    @cached_property
    def policy(self) -> Tiles:
        """The policy whose parameters are learned."""
        low, high = (0.0, 0.0, -math.pi), (SHIP.field, SHIP.field, math.pi)
        return Tiles(low, high, self.tiles, self.n_tilings, columns=(0, 1, 2))

    @property
    def n_parameters(self) -> int:
        """One weight per tile."""
        return self.policy.n_parameters

    @property
    def optimum(self) -> float | None:
        """Best return of any controller from the fixed start, -58.705; None for random starts."""
        if self.start == "random":
            return None
        return float(self._returns_at_gate[min(FASTEST - 1, self.horizon)])

    @cached_property
    def _returns_at_gate(self) -> FloatArray:
        return _backwards(0.0, self.discount, self.horizon)

    @cached_property
    def _returns_out(self) -> FloatArray:
        return _backwards(-OUT_COST, self.discount, self.horizon)

    def start_states(self, seeds: ArrayLike) -> FloatArray:
        """States (N, 4) in which episodes of these seeds (N,) begin."""
        seeds = np.asarray(seeds)
        if self.start == "fixed":
            return np.tile(np.array(FIXED_START), (len(seeds), 1))
        low = np.array([0.0, 0.0, -math.pi, -SHIP.rate_limit])
        high = np.array([SHIP.field, SHIP.field, math.pi, SHIP.rate_limit])
        states = np.empty((len(seeds), 4))
        for state, seed in zip(states, seeds, strict=True):
            state[:] = low + (high - low) * np.random.default_rng(int(seed)).random(4)
        return states

    @overload
    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = ...) -> FloatArray: ...

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = ..., *, return_success: Literal[False]
    ) -> FloatArray: ...

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = ..., *, return_success: Literal[True]
    ) -> tuple[FloatArray, BoolArray]: ...

    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: bool = False
    ) -> FloatArray | tuple[FloatArray, BoolArray]:
        """Discounted returns of one episode per parameter vector.

        Parameters
        ----------
        theta
            Parameter vectors, shape (N, n_parameters).
        seed
            See :func:`klimb.tasks.task.episode_seeds`; without effect from the fixed start.
        return_success
            Whether to return also who went through the gate.

        Returns
        -------
        returns : FloatArray
            Shape (N,); NaN where an action was not finite.
        success : BoolArray
            Shape (N,), only with `return_success`.
        """
        compiled = _compiled()
        theta = np.ascontiguousarray(samples("theta", theta, self.n_parameters))
        starts = self.start_states(episode_seeds(seed, len(theta)))
        steps, outcomes = compiled.sail_all(SHIP, theta, *self._grids, starts, self.horizon)
        returns = np.full(len(theta), np.nan)
        # the last step has its own reward, all before it cost 1; an episode out of time has no such last step
        for outcome, table, before in (
            (compiled.GATE, self._returns_at_gate, steps - 1),
            (compiled.OUT, self._returns_out, steps - 1),
            (compiled.LATE, self._returns_at_gate, steps),
        ):
            ended = outcomes == outcome
            returns[ended] = table[before[ended]]
        return (returns, outcomes == compiled.GATE) if return_success else returns

    def trajectory(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """States before every control step and after the last, shape (steps + 1, 4), for a plot of the path.

        Parameters
        ----------
        theta
            One parameter vector, shape (n_parameters,).
        seed
            As for a batch of one: row k of ``evaluate(theta, seed)`` took the path of
            ``trajectory(theta[k], episode_seeds(seed, len(theta))[k : k + 1])``.
        """
        weights = np.ascontiguousarray(vector("theta", theta))
        if weights.shape != (self.n_parameters,):
            raise ValueError(
                f"theta must be one parameter vector, shape ({self.n_parameters},), "
                f"but its shape is {weights.shape}."
            )
        start = self.start_states(episode_seeds(seed, 1))[0]
        path = np.empty((self.horizon + 1, 4))
        steps, _ = _compiled().sail(SHIP, weights, *self._grids, start, self.horizon, path)
        return path[: steps + 1].copy()

    def film(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, width: int = 480, height: int = 480
    ) -> Film:
        """Film the ship's way with one parameter vector (n_parameters,); the picture is square."""
        from klimb.tasks import _ship_drawing

        gate = (SHIP.gate_x0, SHIP.gate_y0, SHIP.gate_x1, SHIP.gate_y1)
        return _ship_drawing.film(self.trajectory(theta, seed), SHIP.field, gate, min(width, height))

    @cached_property
    def _grids(self) -> tuple[FloatArray, FloatArray, NDArray[np.int64]]:
        return self.policy.origins, self.policy.sides, np.array(self.tiles, dtype=np.int64)
