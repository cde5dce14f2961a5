"""Random search, and augmented random search (ARS), the simple method for linear policies.

ARS moves the parameters M along random directions d_k ~ N(0, I), tried on both sides, of which it keeps the b
whose better side was best ("-t" in its versions' names), in units of the deviation of their 2 b returns:

    M <- M + learning_rate / (b deviation) sum_k (J(M + noise d_k) - J(M - noise d_k)) d_k

V1 needs nothing but returns, so it works on the parameters of any policy or function. V2 acts on normalised
observations, with the mean and deviation of all that were seen so far; it needs an environment to see them
in, and learns a linear policy there (:mod:`klimb.baselines.stepping`), whatever policy the task itself has.

References: S. Brooks, "A Discussion of Random Methods for Seeking Maxima", 1958; H. Mania, A. Guy, B. Recht,
"Simple random search of static linear policies is competitive for reinforcement learning", NeurIPS 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from klimb._validation import FloatArray, one_of, positive, whole
from klimb.baselines.conversation import Baseline, Proposal, Steps
from klimb.baselines.statistics import Statistics
from klimb.baselines.stepping import Act, Arena, Rollout
from klimb.gaussian import unmixed


def random_search() -> Baseline:
    """Pure random search: tries draws of the start distribution and keeps the best."""
    return Baseline("random-search", {}, _random_steps, lambda n: 50)


def _random_steps(mean: FloatArray, std: FloatArray, batch: int, seed: int) -> Steps:
    rng = np.random.default_rng(seed)
    best, highest = mean, -np.inf
    while True:
        theta = mean + std * rng.standard_normal((batch, mean.size))
        returns = yield Proposal(theta, best)
        if np.nanmax(returns, initial=-np.inf) > highest:
            top = int(np.nanargmax(returns))
            best, highest = theta[top], float(returns[top])


def ars(
    version: str = "v1-t",
    learning_rate: float = 0.02,
    noise: float | None = None,
    n_top: int | None = None,
) -> Baseline | AugmentedRandomSearch:
    """Augmented random search: finite differences along random directions, the best of them.

    Parameters
    ----------
    version
        "v1-t" works on any parameters; "v2-t" normalises observations and learns a linear policy.
    learning_rate
        Of the parameters, in their units.
    noise
        Length of the differences; None takes the standard deviation to start with, of V2: 0.03.
    n_top
        How many directions count, b; None takes half of them.
    """
    settings = {
        "version": one_of("version", version, ("v1-t", "v2-t")),
        "learning_rate": positive("learning_rate", learning_rate),
        "noise": None if noise is None else positive("noise", noise),
        "n_top": None if n_top is None else whole("n_top", n_top, 1),
    }
    if version == "v2-t":
        return AugmentedRandomSearch(settings)
    return Baseline("ars", settings, partial(_ars_steps, settings), lambda n: 32, fewest=2)


@dataclass(frozen=True)
class Directions:
    """The directions of one update, (K, n), and how to learn from them."""

    d: FloatArray
    learning_rate: float
    n_top: int

    def pairs(self, centre: FloatArray, noise: FloatArray | float) -> FloatArray:
        """Parameters to try, (2 K, n): centre + noise d_k and centre - noise d_k in turn."""
        pairs = centre + np.stack([noise * self.d, -noise * self.d], axis=1)
        return pairs.reshape(-1, centre.size)

    def step(self, returns: FloatArray) -> FloatArray:
        """The step of the parameters, (n,), from the returns (2 K,); pairs that failed are left out."""
        plus, minus = returns[0::2], returns[1::2]
        better = np.where(np.isfinite(plus + minus), np.fmax(plus, minus), -np.inf)
        top = np.argsort(-better, kind="stable")[: self.n_top]
        top = top[np.isfinite(better[top])]
        if top.size == 0:
            return np.zeros(self.d.shape[1])
        deviation = float(np.concatenate([plus[top], minus[top]]).std())
        if deviation == 0:
            return np.zeros(self.d.shape[1])
        step: FloatArray = (
            self.learning_rate / (top.size * deviation) * ((plus[top] - minus[top]) @ self.d[top])
        )
        return step


def _directions(
    settings: dict[str, Any], rng: np.random.Generator, batch: int, n_parameters: int
) -> Directions:
    count = batch // 2
    n_top = settings["n_top"] or max(1, count // 2)
    return Directions(rng.standard_normal((count, n_parameters)), settings["learning_rate"], n_top)


def _check_pairs(settings: dict[str, Any], batch: int) -> None:
    if batch % 2:
        raise ValueError(f"ars tries every direction on both sides, so batch must be even, but {batch} came.")
    if (settings["n_top"] or 1) > batch // 2:
        raise ValueError(
            f"n_top must be at most the number of directions, {batch // 2}, but {settings['n_top']} came."
        )


def _ars_steps(settings: dict[str, Any], mean: FloatArray, std: FloatArray, batch: int, seed: int) -> Steps:
    _check_pairs(settings, batch)
    rng = np.random.default_rng(seed)
    relative = std / std.mean()  # 1 for all where std is one number
    noise = std if settings["noise"] is None else settings["noise"] * relative
    variances = np.square(noise)  # of what it tries, which stays as wide as it began
    while True:
        directions = _directions(settings, rng, batch, mean.size)
        returns = yield Proposal(directions.pairs(mean, noise), mean, unmixed(mean, variances).sample)
        mean = mean + relative * directions.step(returns)


# -------------------------------------------------------------------------------------------------------- V2


@dataclass(frozen=True)
class AugmentedRandomSearch:
    """ARS V2-t, which acts in an environment."""

    settings: dict[str, Any]
    name = "ars"
    batch = 32
    fewest = 2

    def check(self, batch: int) -> None:
        """Raise a ValueError if the settings do not suit the batch."""
        _check_pairs(self.settings, batch)

    def agent(self, arena: Arena, batch: int, seed: int) -> LinearSearcher:
        """Begin with a policy of zeros."""
        return LinearSearcher(self.settings, arena, batch, seed)


class LinearSearcher:
    """Actions W (x - mean) / deviation, with the statistics of all observations so far."""

    def __init__(self, settings: dict[str, Any], arena: Arena, batch: int, seed: int) -> None:
        self._settings, self._arena, self._batch = settings, arena, batch
        self._rng = np.random.default_rng(seed)
        self._noise: float = 0.03 if settings["noise"] is None else settings["noise"]
        self._statistics = Statistics(arena.n_observations)
        self.parameters = np.zeros(arena.n_actions * arena.n_observations)

    def explore(self) -> Act:
        """Let each row of a batch follow a direction of its own."""
        n = self.parameters.size
        self._directions = _directions(self._settings, self._rng, self._batch, n)
        return self._act(self._directions.pairs(self.parameters, self._noise))

    def learn(self, rollout: Rollout) -> None:
        """Update the parameters, then the statistics."""
        self.parameters = self.parameters + self._directions.step(rollout.returns)
        self._statistics.add(rollout.observations[np.isfinite(rollout.observations).all(axis=1)])

    def policy(self, deterministic: bool, rng: np.random.Generator) -> Act:
        """Act by what was learned; there is no randomness in it."""
        return self._act(self.parameters[None])

    def _act(self, theta: FloatArray) -> Act:
        weights = theta.reshape(-1, self._arena.n_actions, self._arena.n_observations)
        mean, deviation = self._statistics.mean, self._statistics.deviation

        def act(observations: FloatArray, rows: Any) -> FloatArray:
            x = (observations - mean) / deviation
            chosen = weights[rows] if len(weights) > 1 else weights
            actions: FloatArray = (chosen * x[:, None, :]).sum(axis=-1)
            return actions

        return act

    def arrays(self) -> dict[str, FloatArray]:
        """What was learned, by name."""
        return {
            "weights": self.parameters.reshape(self._arena.n_actions, -1),
            "mean": self._statistics.mean,
            "deviation": self._statistics.deviation,
        }
