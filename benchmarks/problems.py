"""Random update problems, from easy to nasty, for the benchmark and the tests of the constrained update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from klimb.gaussian import Gaussian, unmixed


@dataclass(frozen=True)
class Problem:
    """A belief in local coordinates, a batch, and the bounds for its update."""

    prior: Gaussian
    samples: NDArray[np.float64]
    returns: NDArray[np.float64]
    epsilon: float
    kappa: float


def random_problem(rng: np.random.Generator, largest_n: int = 500, largest_N: int = 300) -> Problem:
    """Sizes, scales and degeneracies of many kinds, each drawn independently."""
    n = round(float(np.exp(rng.uniform(np.log(2), np.log(largest_n)))))
    N = round(float(np.exp(rng.uniform(np.log(2), np.log(largest_N)))))
    decades = rng.choice([0.0, 1.0, 6.0, 12.0])  # of variance between the longest and the shortest axis
    variances = 10.0 ** rng.uniform(-decades, 0.0, n) * 10.0 ** rng.uniform(-6, 6)
    samples = rng.standard_normal((N, n)) * np.sqrt(variances) * 10.0 ** rng.choice([-3.0, 0.0, 0.0, 2.0])
    if rng.random() < 0.3:  # samples that were not asked for, from elsewhere
        samples += rng.standard_normal(n) * np.sqrt(variances) * 10.0 ** rng.uniform(-1, 3)
    if rng.random() < 0.3:  # duplicates
        samples = samples[rng.integers(0, max(2, N // 3), N)]
    if rng.random() < 0.2:  # a parameter that never changes
        samples[:, rng.integers(n)] = 0.0
    direction = rng.standard_normal(n) / np.sqrt(variances)
    returns = samples @ direction / np.sqrt(n) + rng.standard_normal(N)
    if rng.random() < 0.2:  # coarse returns with many equals
        returns = np.round(returns)
    if (returns == returns[0]).all():
        returns[0] += 1.0
    returns = returns * 10.0 ** rng.uniform(-12, 12) + rng.choice([0.0, 1.0]) * rng.standard_normal()
    epsilon = float(10.0 ** rng.uniform(-3, 1))
    kappa = float(10.0 ** rng.uniform(-2, 2))
    return Problem(unmixed(np.zeros(n), variances), samples, returns, epsilon, kappa)
