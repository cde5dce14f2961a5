"""Compiled loops of :mod:`klimb.tasks.ship_steering`; imported on first use, since numba takes its time.

The ship's numbers come in as arguments: numba's cache on disk notices a change in this file, not in another
module's constants. No fastmath, no threads: an episode is one run of the outer loop and its result its own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from klimb._validation import FloatArray, IntArray

if TYPE_CHECKING:
    from klimb.tasks.ship_steering import Ship

State = tuple[float, float, float, float]

# What became of the ship
SAILING, GATE, OUT, LATE, DIVERGED = 0, 1, 2, 3, 4


@njit(cache=True, nogil=True)
def crosses_gate(ship: Ship, x0: float, y0: float, x1: float, y1: float) -> bool:
    """Whether the segment from (x0, y0) to (x1, y1) meets the gate, ends included."""
    gx, gy = ship.gate_x1 - ship.gate_x0, ship.gate_y1 - ship.gate_y0
    # which side of the gate's line each end is on; consecutive segments share an end and so its side, bit for
    # bit: no path slips through between two segments
    side0 = gx * (y0 - ship.gate_y0) - gy * (x0 - ship.gate_x0)
    side1 = gx * (y1 - ship.gate_y0) - gy * (x1 - ship.gate_x0)
    if (side0 > 0 and side1 > 0) or (side0 < 0 and side1 < 0) or side0 == side1:
        return False
    meet = side0 / (side0 - side1)
    x, y = x0 + meet * (x1 - x0), y0 + meet * (y1 - y0)
    along = (gx * (x - ship.gate_x0) + gy * (y - ship.gate_y0)) / (gx * gx + gy * gy)
    return 0 <= along <= 1


@njit(cache=True, nogil=True)
def control_step(ship: Ship, state: State, action: float) -> tuple[State, int]:
    """One control step: the next state (x, y, heading, rate) and what became of the ship."""
    if not math.isfinite(action):
        return state, DIVERGED
    desired = min(max(action, -ship.rate_limit), ship.rate_limit)
    for _ in range(ship.substeps):
        x0, y0, heading0, rate0 = state
        x = x0 + ship.speed * math.sin(heading0) * ship.dt
        y = y0 + ship.speed * math.cos(heading0) * ship.dt
        heading = heading0 + rate0 * ship.dt
        # a substep turns by far less than a turn: one correction keeps the heading in [-pi, pi)
        if heading >= math.pi:
            heading -= 2 * math.pi
        elif heading < -math.pi:
            heading += 2 * math.pi
        rate = rate0 + (desired - rate0) * ship.dt / ship.lag
        if x < 0 or x > ship.field or y < 0 or y > ship.field:
            return (min(max(x, 0.0), ship.field), min(max(y, 0.0), ship.field), heading, rate), OUT
        state = (x, y, heading, rate)
        if crosses_gate(ship, x0, y0, x, y):
            return state, GATE
    return state, SAILING


@njit(cache=True, nogil=True)
def steer(
    weights: FloatArray, origins: FloatArray, sides: FloatArray, tiles: IntArray, state: State
) -> float:
    """Sum of the active tiles' weights, as :meth:`klimb.policies.tiles.Tiles.act` has it."""
    action = 0.0
    for tiling in range(origins.shape[0]):
        flat = tiling
        for dimension in range(3):
            place = math.floor((state[dimension] - origins[tiling, dimension]) / sides[dimension])
            flat = flat * tiles[dimension] + min(max(place, 0), tiles[dimension] - 1)
        action += weights[flat]
    return action


@njit(cache=True, nogil=True)
def sail(
    ship: Ship,
    weights: FloatArray,
    origins: FloatArray,
    sides: FloatArray,
    tiles: IntArray,
    start: FloatArray,
    horizon: int,
    path: FloatArray,
) -> tuple[int, int]:
    """One episode: control steps and the outcome; `path`, (horizon + 1, 4) or (0, 4), takes the states."""
    record = path.shape[0] > 0
    state = (start[0], start[1], start[2], start[3])
    if record:
        path[0] = state
    for step in range(horizon):
        action = steer(weights, origins, sides, tiles, state)
        state, outcome = control_step(ship, state, action)
        if record:
            path[step + 1] = state
        if outcome != SAILING:
            return step + 1, outcome
    return horizon, LATE


@njit(cache=True, nogil=True)
def sail_all(
    ship: Ship,
    theta: FloatArray,
    origins: FloatArray,
    sides: FloatArray,
    tiles: IntArray,
    starts: FloatArray,
    horizon: int,
) -> tuple[IntArray, IntArray]:
    """Control steps (N,) and outcomes (N,) of one episode per row of theta (N, n), from starts (N, 4)."""
    steps = np.empty(theta.shape[0], np.int64)
    outcomes = np.empty(theta.shape[0], np.int64)
    nowhere = np.empty((0, 4))
    for row in range(theta.shape[0]):
        steps[row], outcomes[row] = sail(
            ship, theta[row], origins, sides, tiles, starts[row], horizon, nowhere
        )
    return steps, outcomes
