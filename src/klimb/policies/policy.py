"""What every policy offers: parameters and observations in, actions out, and nothing kept in between.

A policy holds settings only. The parameters come with every call, one row per episode, so that one policy
serves a whole batch, and a row's actions depend on that row alone: bit for bit the same in any batch, in any
order. Matrix products of BLAS do not promise that (the order of summation may change with the shape of the
batch), so the policies sum by :func:`mix` or along a contiguous last axis.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, numbers


class Policy(Protocol):
    """A map from parameters and observations to actions."""

    @property
    def n_parameters(self) -> int:
        """Length of a parameter vector."""
        ...

    @property
    def n_actions(self) -> int:
        """Length of an action."""
        ...

    def act(self, theta: ArrayLike, observations: ArrayLike, step: int) -> FloatArray:
        """Actions (N, n_actions) at control step `step`, of parameters (N, n) at observations (N, o)."""
        ...


class OpenLoopPolicy(Policy, Protocol):
    """A policy that fixes a whole movement in advance; its `act` ignores the observations."""

    @property
    def horizon(self) -> int:
        """Number of control steps of the movement."""
        ...

    def trajectory(self, theta: ArrayLike) -> FloatArray:
        """Actions (N, horizon, n_actions) of the whole episode."""
        ...


def rows(name: str, value: ArrayLike, width: int) -> FloatArray:
    """Return `value` as C-ordered float64 rows of `width` entries; the entries themselves are not judged."""
    array = np.ascontiguousarray(numbers(name, value))
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(
            f"{name} must have shape (N, {width}), one row per episode, but its shape is {array.shape}."
        )
    return array


def paired_rows(name: str, value: ArrayLike, width: int, count: int) -> FloatArray:
    """Like :func:`rows`, and as many of them as there are parameter vectors."""
    array = rows(name, value, width)
    if len(array) != count:
        raise ValueError(
            f"{name} must have one row per row of theta, {count} of them, but there are {len(array)}; "
            "repeat the rows of theta to try one parameter vector on several observations."
        )
    return array


def step_within(step: int, horizon: int) -> int:
    """Return `step` if the movement has it."""
    if not 0 <= step < horizon:
        raise ValueError(
            f"step must lie in 0..{horizon - 1}, but {step} came; give the policy the horizon of the episode."
        )
    return step


def mix(weights: FloatArray, basis: FloatArray) -> FloatArray:
    """Weighted sums of basis functions over time.

    Parameters
    ----------
    weights
        Shape (N, joints, bases).
    basis
        Value of every basis function at every step, shape (steps, bases).

    Returns
    -------
    FloatArray
        Shape (N, steps, joints), C-ordered.
    """
    mixture = np.zeros((weights.shape[0], basis.shape[0], weights.shape[1]))
    # one basis after the other, element by element: the order of the sum cannot depend on the batch
    for place in range(basis.shape[1]):
        mixture += basis[:, place, None] * weights[:, None, :, place]
    return mixture
