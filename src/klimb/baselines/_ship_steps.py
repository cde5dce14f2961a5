"""Compiled steps of many ships at once; imported on first use, since numba takes its time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from klimb._validation import FloatArray
from klimb.tasks._ship_rollout import GATE, OUT, SAILING, control_step

if TYPE_CHECKING:
    from klimb.baselines.stepping import BoolArray
    from klimb.tasks.ship_steering import Ship


@njit(cache=True, nogil=True)
def sail_rows(
    ship: Ship, out_cost: float, states: FloatArray, actions: FloatArray
) -> tuple[FloatArray, FloatArray, BoolArray, BoolArray]:
    """One control step of each ship (k, 4): states after it, rewards, whether it is over, and well."""
    count = states.shape[0]
    after = np.empty((count, 4))
    rewards = np.empty(count)
    over, success = np.empty(count, np.bool_), np.empty(count, np.bool_)
    for row in range(count):
        state = (states[row, 0], states[row, 1], states[row, 2], states[row, 3])
        state, outcome = control_step(ship, state, actions[row])
        for column in range(4):
            after[row, column] = state[column]
        if outcome == SAILING:
            rewards[row] = -1.0
        elif outcome == GATE:
            rewards[row] = 0.0
        elif outcome == OUT:
            rewards[row] = -out_cost
        else:
            rewards[row] = math.nan
        over[row], success[row] = outcome != SAILING, outcome == GATE
    return after, rewards, over, success
