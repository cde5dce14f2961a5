"""Returns as the surrogate sees them: their units, their ranks, and what they tell before any fit."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri

from klimb._validation import FloatArray

VALUES, RANKS = 0, 1
# Returns of near episodes that are further from the quartiles than so many interquartile ranges count as if
# they were there.
OUTLYING = 10.0
# Episodes further away than so many times the usual squared distance are moved here: they count for nothing.
FAR = 1e4
# Good returns are rare where their skewness is above 0 by so many standard errors.
SKEWED = 2.0


def remoteness(length: FloatArray) -> FloatArray:
    """Squared lengths (N,) in units of what is usual: 1 for the nearest quarter, at most :data:`FAR`."""
    usual = max(float(np.sort(length)[length.size // 4]), 1e-300)
    return length.clip(usual, FAR * usual) / usual


def nearness(remote: FloatArray) -> FloatArray:
    """Weights (N,) of samples by their :func:`remoteness`, 1 for the nearest quarter: far ones hardly count.

    They fall with the sixth power of the distance, as what a remainder of the third order leaves unknown
    grows, down to where an episode counts for nothing.
    """
    return remote**-3.0


def scaled(returns: FloatArray, length: FloatArray) -> tuple[FloatArray, float]:
    """Returns around 0 in units of their spread, and that spread; outliers are brought back in.

    Both are those of the near episodes, by the squared lengths (N,) of the samples: where the belief has
    closed in, the returns of earlier episodes differ by far more, and in their units nothing could be seen of
    what is left. What is an outlier grows with them, as a bowl does.
    """
    largest = float(np.abs(returns).max())
    remote = remoteness(length)
    J = returns / largest  # keeps the squares of huge and tiny returns in range
    low, high = np.sort(J)[[J.size // 4, (3 * J.size) // 4]]
    if high > low:
        reach = OUTLYING * (high - low) * remote
        J = J.clip(low - reach, high + reach)
    near = nearness(remote)
    near /= near.sum()
    J = J - near @ J
    size = float(np.abs(J).max())
    rms = size * math.sqrt(float(near @ np.square(J / size)))
    return J / rms, rms * largest


def ranked(returns: FloatArray, length: FloatArray) -> tuple[FloatArray, float]:
    """Normal scores of the ranks of the returns, in units of the spread of near ones, as :func:`scaled`."""
    _, place, counts = np.unique(returns, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts / 2  # equals share their places
    scores: FloatArray = ndtri(below / returns.size)[place]
    near = nearness(remoteness(length))
    near /= near.sum()
    scores = scores - near @ scores
    spread = max(math.sqrt(float(near @ np.square(scores))), 1e-100)
    return scores / spread, spread


def on_plateau(returns: FloatArray) -> bool:
    """Whether half of the returns or more are the worst: a landscape without slope but for a few spots."""
    return bool(2 * np.count_nonzero(returns == returns.min()) >= returns.size)


def rarely_good(returns: FloatArray) -> bool:
    """Whether returns (N,) are skewed to the good side, by more than chance: a few far above the others.

    Those of a bowl are skewed to the bad side, of which there is more than of the good one. A puck that goes
    into the goal now and then, or legs that take a step, are known by this before anything is explained.
    """
    J = returns / max(float(np.abs(returns).max()), 1e-300)
    away = J - J.mean()
    spread = math.sqrt(float(np.square(away).mean()))
    return spread > 0 and float(np.mean((away / spread) ** 3)) > SKEWED * math.sqrt(6 / J.size)


def average(returns: FloatArray) -> float:
    """Mean of returns (k,), be they huge."""
    with np.errstate(over="ignore"):
        return float(returns.mean())
