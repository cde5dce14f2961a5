"""What every task offers: parameters in, returns out, the same whoever evaluates them.

An episode is one parameter vector and one seed, and its return depends on these two alone: not on the
batch it came in, its place there, or the number of workers.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray


class Task(Protocol):
    """A problem to learn; returns are maximised.

    Attributes
    ----------
    n_parameters
        Length of a parameter vector.
    optimum
        The best possible (expected) return, or None where it is not known.
    initial_std
        A standard deviation of the parameters to start the search with, around zero.
    """

    @property
    def n_parameters(self) -> int: ...  # noqa: D102

    @property
    def optimum(self) -> float | None: ...  # noqa: D102

    @property
    def initial_std(self) -> float: ...  # noqa: D102

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Returns (N,) of the parameter vectors `theta` (N, n); see :func:`episode_seeds` for `seed`."""
        ...


def episode_seeds(seed: int | ArrayLike, count: int) -> NDArray[np.uint64]:
    """One seed per episode, shape (count,).

    A single non-negative integer is spread into `count` independent seeds, of which the first k are the
    same for every count >= k. An array of `count` seeds is taken as it is: that is how a batch is split
    over workers without changing a single return.
    """
    array = np.asarray(seed)
    if array.dtype.kind not in "iu" and not (array.ndim == 1 and array.size == 0):
        raise ValueError(f"seed must be a whole number or one per episode, but {seed!r} came.")
    if array.size and array.min() < 0:
        raise ValueError(f"seed must not be negative, but {int(array.min())} came.")
    if array.ndim == 0:
        return np.random.SeedSequence(int(array)).generate_state(count, np.uint64).astype(np.uint64)
    if array.shape != (count,):
        raise ValueError(f"seed must be one number or {count} of them, but its shape is {array.shape}.")
    return array.astype(np.uint64)
