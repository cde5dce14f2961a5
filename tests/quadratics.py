"""Episodes of a quadratic, and what a search by the surrogate may remember."""

import numpy as np

from klimb.surrogate.learning import first_memory
from klimb.surrogate.returns import scaled
from klimb.surrogate.twins import matched

NOT_MEASURED = np.empty(0)


def draw_pairs(rng, pairs, n):
    z = rng.standard_normal((pairs, n))
    return np.stack([z, -z], axis=1).reshape(2 * pairs, n)


def in_pairs(count):
    return matched(np.tile([1, -1], count // 2))


def all_alone(count):
    return matched(np.zeros(count, dtype=np.int64))


def remembering(n, full, values, ranks=(0, 0, 0, 0, 0, 0)):
    """Memory of these amplitudes of values, and of ranks, of the returns."""
    return first_memory(n, full)._replace(amplitudes=np.array([values, ranks], dtype=np.float64))


def quadratic_returns(z, g, H):
    return z @ g + 0.5 * np.einsum("ij,jk,ik->i", z, H, z)


def standardised(returns):
    return scaled(returns, np.ones(len(returns)))
