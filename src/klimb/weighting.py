"""Returns to weights: how much each episode of a batch counts in the update.

Symbols: returns J (N,), weights d (N,) with sum 1, temperature eta, bound epsilon.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from klimb._validation import FloatArray


def standardise(returns: FloatArray) -> FloatArray:
    """Returns with mean 0 and standard deviation 1; they must not all be equal."""
    J = returns / np.abs(returns).max()  # keeps the squares of huge and tiny returns in range
    J = J - J.mean()
    J /= np.abs(J).max()
    deviations: FloatArray = J / np.sqrt(np.mean(np.square(J)))
    return deviations


def reward_weights(returns: FloatArray, beta: float) -> FloatArray:
    """RWR: d ~ exp(beta (J - max J))."""
    d = np.exp(beta * (returns - returns.max()))
    weights: FloatArray = d / d.sum()
    return weights


def entropic_weights(returns: FloatArray, epsilon: float) -> tuple[FloatArray, float]:
    """REPS: d ~ exp(J / eta) as far from uniform as KL(d || uniform) <= epsilon allows.

    The minimum of the dual  eta epsilon + eta log mean exp((J - max J) / eta)  is where that divergence
    equals epsilon. It cannot exceed log(N / k) when k returns share the maximum: from there on eta is 0 and
    the weight lies on these k alone.

    Returns
    -------
    weights : (N,)
    temperature
        eta, in units of the returns.
    """
    largest = np.abs(returns).max()
    J = returns / largest
    J = J - J.max()
    spread = -J.min()
    J /= spread  # now in [-1, 0], whatever the scale of the returns

    def weights(log_eta: float) -> FloatArray:
        d = np.exp(J / math.exp(log_eta))
        return d / d.sum()  # type: ignore[no-any-return]

    def excess(log_eta: float) -> float:
        d = weights(log_eta)
        d = d[d > 0]
        return math.log(J.size) + float(d @ np.log(d)) - epsilon

    best = J == 0
    if epsilon >= math.log(J.size / best.sum()):
        return best / best.sum(), 0.0
    # KL <= Var(J) / (2 eta^2) <= 1 / (8 eta^2) bounds eta above; below, the gap to the runner-up counts.
    high = max(0.0, -0.5 * math.log(8 * epsilon)) + 1.0
    low = high - 1.0
    while excess(low) <= 0:
        high, low = low, low - 2.0
        if low < -700:  # the runner-up is no further away than rounding
            return best / best.sum(), 0.0
    log_eta = brentq(excess, low, high, xtol=1e-13, rtol=1e-14)
    return weights(log_eta), math.exp(log_eta) * float(spread) * float(largest)


def elite_weights(returns: FloatArray, n_elite: int) -> FloatArray:
    """CEM: the same weight for the n_elite best, none for the others; equals at the border share theirs."""
    border = np.sort(returns)[-n_elite]
    above, at = returns > border, returns == border
    weights: FloatArray = (above + at * ((n_elite - above.sum()) / at.sum())) / n_elite
    return weights


def rank_utilities(returns: FloatArray) -> FloatArray:
    """NES: u ~ max(0, log(N/2 + 1) - log rank), shifted to sum 0; equals share the mean of theirs."""
    N = returns.size
    by_rank = np.maximum(0.0, math.log(N / 2 + 1) - np.log(np.arange(1, N + 1)))
    by_rank = by_rank / by_rank.sum() - 1 / N
    _, group, size = np.unique(-returns, return_inverse=True, return_counts=True)
    mean = np.add.reduceat(by_rank, np.cumsum(size) - size) / size
    utilities: FloatArray = mean[group]
    return utilities
