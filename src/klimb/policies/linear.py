"""Linear controller: actions proportional to (normalised) observations.

Normalising each entry of the observation is what makes random search on linear policies work on tasks whose
entries differ in scale: H. Mania, A. Guy, B. Recht, "Simple random search of static linear policies is
competitive for reinforcement learning", NeurIPS 2018 (ARS).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, numbers, vector, whole
from klimb.policies.policy import paired_rows, rows

# Below this, an entry's deviation is taken for rounding and not for information (the threshold of ARS).
CONSTANT = 1e-7


def observation_statistics(observations: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of each entry of the observations, to normalise them by.

    Parameters
    ----------
    observations
        Finite observations, shape (..., o): those of any number of steps and episodes.

    Returns
    -------
    mean, std : FloatArray
        Shape (o,) each. `std` is the sample's (divisor count - 1); an entry that never changes (std below
        1e-7) has 1, so that it contributes its difference from the mean, which is 0 as long as it does not
        change. (ARS has infinity there, which silences the entry for ever.)
    """
    array = numbers("observations", observations)
    if array.ndim < 1 or array.size == 0:
        raise ValueError(
            f"observations must hold at least one, shape (..., o), but its shape is {array.shape}."
        )
    array = array.reshape(-1, array.shape[-1])
    if not np.isfinite(array).all():
        row, place = np.argwhere(~np.isfinite(array))[0]
        raise ValueError(
            f"observations must be finite, but entry {place} of observation {row} is {array[row, place]}; "
            "leave out the episodes that diverged."
        )
    mean = array.mean(axis=0)
    std = np.sqrt(((array - mean) ** 2).sum(axis=0) / max(1, len(array) - 1))
    return mean, np.where(std < CONSTANT, 1.0, std)


def _entries(name: str, value: Sequence[float] | FloatArray | None, count: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    array = vector(name, value)
    if array.shape != (count,):
        raise ValueError(f"{name} must have one entry per observation, {count}, but it has {array.size}.")
    return tuple(array.tolist())


@dataclass(frozen=True)
class Linear:
    """Actions W x (+ b) of the normalised observation x = (observation - mean) / std.

    Parameters
    ----------
    n_observations, n_actions
        Lengths of an observation and of an action.
    bias
        Whether a constant b per action is learned too.
    mean, std
        Normalisation, shape (n_observations,), for example of :func:`observation_statistics`; None leaves
        the observations as they are.

    Notes
    -----
    A parameter vector is W (n_actions, n_observations), row by row, and then b (n_actions,), if any.
    """

    n_observations: int
    n_actions: int
    bias: bool = False
    mean: Sequence[float] | FloatArray | None = None
    std: Sequence[float] | FloatArray | None = None

    def __post_init__(self) -> None:
        whole("n_observations", self.n_observations, 1)
        whole("n_actions", self.n_actions, 1)
        # tuples: a frozen setting must neither change with the caller's array nor make `==` ambiguous
        object.__setattr__(self, "mean", _entries("mean", self.mean, self.n_observations))
        std = _entries("std", self.std, self.n_observations)
        object.__setattr__(self, "std", std)
        if std is not None and min(std) <= 0:
            raise ValueError(
                f"std must be above 0, but std[{std.index(min(std))}] is {min(std)}; "
                "observation_statistics() gives 1 to entries that never change."
            )

    @property
    def n_parameters(self) -> int:
        """One weight per action and observation, and one bias per action."""
        return self.n_actions * (self.n_observations + self.bias)

    @cached_property
    def _normalisation(self) -> tuple[FloatArray, FloatArray]:
        mean = np.zeros(self.n_observations) if self.mean is None else np.array(self.mean)
        std = np.ones(self.n_observations) if self.std is None else np.array(self.std)
        return mean, std

    def act(self, theta: ArrayLike, observations: ArrayLike, step: int = 0) -> FloatArray:
        """Actions (N, n_actions) of parameters (N, n) at observations (N, n_observations); any step."""
        theta = rows("theta", theta, self.n_parameters)
        observations = paired_rows("observations", observations, self.n_observations, len(theta))
        mean, std = self._normalisation
        x = (observations - mean) / std
        n_weights = self.n_actions * self.n_observations
        W = theta[:, :n_weights].reshape(-1, self.n_actions, self.n_observations)
        # a sum along the contiguous last axis: each row's order of summation is its own
        actions: FloatArray = np.ascontiguousarray(W * x[:, None, :]).sum(axis=-1)
        return actions + theta[:, n_weights:] if self.bias else actions
