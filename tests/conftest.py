"""Shared by all tests: hypothesis settings and random Gaussians."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from klimb.gaussian import Gaussian, from_covariance, unmixed

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

# No deadline: other processes share the cores. Examples derive from the test, so that a run is repeatable.
settings.register_profile(
    "klimb", deadline=None, derandomize=True, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("klimb")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random_covariance(rng, n, condition=100.0):
    axes, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return (axes * condition ** rng.uniform(-0.5, 0.5, n)) @ axes.T


def random_gaussian(rng, n, mixed=None):
    """A Gaussian that mixes the given coordinates (all if None)."""
    mean = rng.standard_normal(n)
    if mixed is None:
        return from_covariance(mean, random_covariance(rng, n))
    block = from_covariance(np.zeros(len(mixed)), random_covariance(rng, len(mixed)))
    return unmixed(mean, rng.uniform(0.1, 3.0, n)).with_block(np.array(mixed), block)


def dense(gaussian: Gaussian):
    """Mean and covariance as plain arrays, built entry by entry from the definition."""
    n = gaussian.n_parameters
    U = np.eye(n)
    for column, j in enumerate(gaussian.mixed):
        for row, i in enumerate(gaussian.mixed):
            U[i, j] = gaussian.rotation[row, column]
    return gaussian.mean, U @ np.diag(gaussian.variances) @ U.T
