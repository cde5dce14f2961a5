"""Compiled neighbour counts behind the nearest-neighbour estimates of mutual information.

Importing this module imports numba, which takes a while: import it where it is needed, not at the top.

Symbols
-------
N, n            samples and parameters
x, y            one parameter's N values and the N returns
k               rank of the neighbour that sets the radius of a point's ball
c_x, c_y, c_xy  how many points are near in x, near in y, near in both
psi             the digamma function

Every pair of points is looked at, O(k N^2 n) in all. For the tens to hundreds of samples of an update this
is faster than sorting or a tree, because a block of points goes through each loop without a branch, several
points per instruction; from a thousand samples on it is merely affordable. Memory is O(N + n).
"""

from __future__ import annotations

import numpy as np
from numba import boolean, float64, int64, njit, types

from klimb._validation import FloatArray

_BLOCK = 32  # points per loop: enough to fill vector registers, few enough to stay in the first-level cache
_TINY = float(np.nextafter(0.0, 1.0))
_SHRINK = 1.0 - 1e-10  # distances that agree to ten digits are equal: rounding must not break a tie

# One signature for every memory layout, read-only arrays included: compiled once, cached once.
_MATRIX = types.Array(float64, 2, "A", readonly=True)
_VECTOR = types.Array(float64, 1, "A", readonly=True)


@njit(cache=True, error_model="numpy")
def _load(column: FloatArray, rounding: float, standardise: bool, values: FloatArray) -> bool:
    """Write `column`, with standard deviation 1 if asked to, into `values`; False if it is constant."""
    N = column.size
    first = column[0]
    spread = 0.0
    for i in range(N):
        spread = max(spread, abs(column[i] - first))
    if spread <= rounding * abs(first):
        return False
    if not standardise:
        for i in range(N):
            values[i] = column[i]
        return True
    # Distances from the first value in units of the largest: squares neither overflow nor underflow.
    mean = 0.0
    for i in range(N):
        mean += (column[i] - first) / spread
    mean /= N
    variance = 0.0
    for i in range(N):
        variance += ((column[i] - first) / spread - mean) ** 2
    deviation = np.sqrt(variance / N)
    for i in range(N):
        values[i] = (column[i] - first) / spread / deviation
    return True


@njit(float64[::1](_MATRIX, _VECTOR, int64, float64[::1], float64, boolean), cache=True, error_model="numpy")
def kraskov(
    samples: FloatArray, returns: FloatArray, k: int, psi: FloatArray, rounding: float, standardise: bool
) -> FloatArray:
    """Kraskov, Stögbauer and Grassberger's first estimator for each column of `samples` and the returns.

    A point's ball is open, in the maximum norm, and reaches to its k-th neighbour. With c_xy, c_x and c_y the
    numbers of points, itself included, that are within that radius in both, in x and in y, the estimate is

        psi(N) + mean over points of (psi(c_xy) - psi(c_x) - psi(c_y)).

    Without ties c_xy = k, and this is equation 8 of Kraskov et al. (2004). Where several neighbours lie at
    the k-th distance (to ten digits), counting c_xy keeps all three counts to the same ball. Where the k-th
    distance is 0, the ball holds the point and its exact copies only, and the estimate is the plug-in one of
    discrete data with psi in place of the logarithm.

    Parameters
    ----------
    samples : (N, n) array
    returns : (N,) array
    k : int
        From 1 to N - 1.
    psi : (N + 1,) array
        The digamma function at 0, ..., N; the first entry is not read.
    rounding : float
        A spread of so much relative to the values counts as none.
    standardise : bool
        Give each parameter and the returns standard deviation 1 first.

    Returns
    -------
    (n,) array
        In nats, not clipped; exactly 0 where the parameter or the returns are constant.
    """
    N, n = samples.shape
    result = np.zeros(n)
    # Infinite entries pad the last block, so that every loop over a block has the same, known length.
    padded = -(-N // _BLOCK) * _BLOCK
    x = np.full(padded, np.inf)
    y = np.full(padded, np.inf)
    if not _load(returns, rounding, standardise, y[:N]):
        return result
    nearest = np.empty(
        (k, _BLOCK)
    )  # distances of the k nearest points so far, ascending, for each of the block
    distance = np.empty(_BLOCK)
    c_x = np.empty(_BLOCK, np.int64)
    c_y = np.empty(_BLOCK, np.int64)
    c_xy = np.empty(_BLOCK, np.int64)
    for column in range(n):
        if not _load(samples[:, column], rounding, standardise, x[:N]):
            continue
        total = 0.0
        for start in range(0, N, _BLOCK):
            x_block = x[start : start + _BLOCK]
            y_block = y[start : start + _BLOCK]
            nearest[:] = np.inf
            for j in range(N):
                xj, yj = x[j], y[j]
                for i in range(_BLOCK):
                    dx = abs(x_block[i] - xj)
                    dy = abs(y_block[i] - yj)
                    distance[i] = dx if dx > dy else dy
                if 0 <= j - start < _BLOCK:
                    distance[j - start] = np.inf  # no point is its own neighbour
                for m in range(k):  # insert: the smaller one stays, the larger one moves on to the next rank
                    for i in range(_BLOCK):
                        held, new = nearest[m, i], distance[i]
                        nearest[m, i] = held if held < new else new
                        distance[i] = new if held < new else held
            radius = nearest[k - 1]
            for i in range(_BLOCK):
                # an open ball of radius 0 would be empty: let it hold the point and its copies
                radius[i] = radius[i] * _SHRINK if radius[i] > 0.0 else _TINY
            c_x[:] = 0
            c_y[:] = 0
            c_xy[:] = 0
            for j in range(N):
                xj, yj = x[j], y[j]
                for i in range(_BLOCK):
                    in_x = np.int64(abs(x_block[i] - xj) < radius[i])
                    in_y = np.int64(abs(y_block[i] - yj) < radius[i])
                    c_x[i] += in_x
                    c_y[i] += in_y
                    c_xy[i] += in_x & in_y
            for i in range(min(_BLOCK, N - start)):
                total += psi[c_xy[i]] - psi[c_x[i]] - psi[c_y[i]]
        result[column] = psi[N] + total / N
    return result
