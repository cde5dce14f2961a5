"""A function of one's own as a task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, positive, samples, whole
from klimb.tasks.task import episode_seeds

Return = Callable[[FloatArray, int], float] | Callable[[FloatArray], float]


def task_from_function(
    function: Return, n_parameters: int, *, initial_std: float = 1.0, optimum: float | None = None
) -> OwnTask:
    """Make a task of a function that runs one episode.

    Parameters
    ----------
    function
        Takes a parameter vector (n,), a copy of its own, and the episode's seed, from which all its
        randomness should derive, and gives the return, NaN if the episode failed. Without randomness it need
        not take a seed. Worker processes find it if it stands at the top level of a module.
    n_parameters
        Length of a parameter vector.
    initial_std
        Standard deviation of the parameters to start with, around zero.
    optimum
        The best possible return, if it is known.

    Examples
    --------
    >>> import numpy as np
    >>> task = task_from_function(lambda theta: -np.sum((theta - 1) ** 2), 3, optimum=0.0)
    >>> task.evaluate(np.zeros((2, 3)))
    array([-3., -3.])
    """
    return OwnTask(function, n_parameters, initial_std, optimum)


@dataclass(frozen=True)
class OwnTask:
    """What :func:`task_from_function` makes, which explains the fields."""

    function: Return
    n_parameters: int
    initial_std: float = 1.0
    optimum: float | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"function must take (theta, seed), but {self.function!r} came.")
        whole("n_parameters", self.n_parameters, 1)
        object.__setattr__(self, "initial_std", positive("initial_std", self.initial_std))
        _ = self._call  # complain now, not in the first episode

    @cached_property
    def _call(self) -> Callable[[FloatArray, int], Any]:
        """The function, taking a seed whether it wants one or not."""
        function: Callable[..., Any] = self.function
        try:
            signature = inspect.signature(function)
        except ValueError:  # it is written in C and does not say
            return function
        if "seed" in signature.parameters:
            return lambda theta, seed: function(theta, seed=seed)
        # one that can do without a second argument means something else by it, such as an option of its own
        for count, call in ((1, lambda theta, seed: function(theta)), (2, function)):
            try:
                signature.bind(*range(count))
            except TypeError:
                continue
            return call
        raise ValueError(f"function must take (theta, seed) or (theta), but it takes {signature}.")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_call"}

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Give the returns (N,) of the parameter vectors `theta` (N, n), one call after the other."""
        theta = samples("theta", theta, self.n_parameters)
        returns = np.empty(len(theta))
        for place, episode_seed in enumerate(episode_seeds(seed, len(theta))):
            value = self._call(theta[place].copy(), int(episode_seed))
            number = np.asarray(value)
            if number.size != 1 or number.dtype.kind not in "fiub":
                raise ValueError(f"function must return a number, but it returned {value!r}.")
            returns[place] = number.item()
        return returns
