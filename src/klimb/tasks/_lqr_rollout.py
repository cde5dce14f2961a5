"""The compiled episodes of the LQR task; imported on first use because numba takes its time to load."""

from __future__ import annotations

import numpy as np
from numba import float64, int64, njit, types

from klimb._validation import FloatArray

# Read-only is the wider type: arrays that may be written to are accepted as well.
_rows = types.Array(float64, 2, "C", readonly=True)
_diagonal = types.Array(float64, 1, "C", readonly=True)


def _rollouts(
    theta: FloatArray,
    starts: FloatArray,
    b: FloatArray,
    q: FloatArray,
    r: FloatArray,
    horizon: int,
    discount: float,
) -> FloatArray:
    """Discounted returns (N,) of the gains `theta` (N, n * n) from the states `starts` (N, n).

    No fastmath: every sum keeps its order, so a return has the same bits in every batch.
    """
    episodes, n = starts.shape
    returns = np.empty(episodes)
    columns = np.empty((n, n))  # W^T: the inner loop then adds vectors, which needs no reordering of sums
    x, u, cost = np.empty(n), np.empty(n), np.empty(n)
    for episode in range(episodes):
        for i in range(n):
            x[i] = starts[episode, i]
            cost[i] = 0.0
            for j in range(n):
                columns[j, i] = theta[episode, i * n + j]
        weight = 1.0  # discount^t
        for _ in range(horizon):
            u[:] = 0.0
            for j in range(n):
                state, column = x[j], columns[j]
                for i in range(n):
                    u[i] += column[i] * state  # u = W x
            for i in range(n):
                action = min(max(u[i], -1.0), 1.0)
                cost[i] += weight * (q[i] * x[i] * x[i] + r[i] * action * action)
                x[i] = min(max(x[i] + b[i] * action, -1.0), 1.0)
            weight *= discount
        total = 0.0
        for i in range(n):
            total -= cost[i]
        returns[episode] = total
    return returns


rollouts = njit(
    float64[::1](_rows, _rows, _diagonal, _diagonal, _diagonal, int64, float64), cache=True, nogil=True
)(_rollouts)
