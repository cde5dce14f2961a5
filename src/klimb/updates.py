"""The update rules: each turns a batch into the next distribution, in local coordinates.

A rule is its settings and one call: (prior, samples, returns, full) -> (posterior, UpdateInfo). The prior is
a diagonal Gaussian around 0, the samples (N, n) and the posterior are in the same coordinates, returns (N,)
are finite and not all equal, and `full` asks for a full covariance. Nothing is validated here but settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from klimb._validation import FloatArray, IntArray, positive, whole
from klimb.fitting import constrained_fit, weighted_fit
from klimb.gaussian import Gaussian, from_whitened, unmixed
from klimb.more import more_update
from klimb.weighting import elite_weights, entropic_weights, rank_utilities, reward_weights, standardise

Result = tuple[Gaussian, "UpdateInfo"]


@dataclass(frozen=True, eq=False)
class UpdateInfo:
    """What an update did; None where a number does not apply to the algorithm.

    Attributes
    ----------
    kl
        KL(old || new) of the belief in nats; KL(new || old) for MORE and the surrogate, which bound that.
    entropy_drop
        Entropy of the old belief minus that of the new.
    eta, omega
        Multipliers of the divergence and the entropy bound; 0 where a bound is not active.
    temperature
        Of the REPS weights, in units of the returns; 0 where the weights are one-hot.
    effective_sample_size
        1 / sum of squared weights: how many episodes the update rests on.
    effectiveness : (n,)
        The measure of each local coordinate, larger matters more.
    selected : (m,)
        The local coordinates that were found effective, ascending.
    relevance : (n,)
        How much each parameter itself matters, as a share of 1: squared slopes in units of the standard
        deviations that the search began with. Known to the surrogate alone.
    skill
        The share of the variance of held-out returns that the surrogate explains.
    n_used, n_failed
        Episodes that went into the update, and those left out because they failed.
    informative
        False if all returns were equal, so that the belief stays as it was.
    attempt
        How many times the search had looked around and begun anew before: see :func:`klimb.auto`.
    """

    kl: float = 0.0
    entropy_drop: float = 0.0
    eta: float | None = None
    omega: float | None = None
    temperature: float | None = None
    effective_sample_size: float | None = None
    effectiveness: FloatArray | None = field(default=None, repr=False)
    selected: IntArray | None = field(default=None, repr=False)
    relevance: FloatArray | None = field(default=None, repr=False)
    skill: float | None = None
    n_used: int = 0
    n_failed: int = 0
    informative: bool = True
    attempt: int = 0


class Update(Protocol):
    """One update rule."""

    rule: ClassVar[str]

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """Return the posterior and what is known of it so far."""
        ...


def effective_size(weights: FloatArray) -> float:
    """1 / sum d^2, between 1 and N."""
    return 1 / float(np.square(weights).sum())


@dataclass(frozen=True)
class RewardWeighted:
    """RWR: weights exp(beta J), then maximum weighted likelihood."""

    rule: ClassVar[str] = "rwr"
    beta: float

    def __post_init__(self) -> None:
        positive("beta", self.beta)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        d = reward_weights(returns, self.beta)
        posterior = weighted_fit(np.sqrt(prior.variances), samples, d, full)
        return posterior, UpdateInfo(effective_sample_size=effective_size(d))


@dataclass(frozen=True)
class RelativeEntropy:
    """REPS: weights within KL(d || uniform) <= epsilon, then maximum weighted likelihood."""

    rule: ClassVar[str] = "reps"
    epsilon: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        d, temperature = entropic_weights(returns, self.epsilon)
        posterior = weighted_fit(np.sqrt(prior.variances), samples, d, full)
        return posterior, UpdateInfo(temperature=temperature, effective_sample_size=effective_size(d))


@dataclass(frozen=True)
class ConstrainedRelativeEntropy:
    """CREPS: REPS weights, then maximum weighted likelihood with both bounds on the Gaussian itself."""

    rule: ClassVar[str] = "creps"
    epsilon: float
    kappa: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("kappa", self.kappa, infinite=True)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        d, temperature = entropic_weights(returns, self.epsilon)
        std = np.sqrt(prior.variances)
        posterior, eta, omega = constrained_fit(std, samples, d, full, self.epsilon, self.kappa)
        size = effective_size(d)
        return posterior, UpdateInfo(
            eta=eta, omega=omega, temperature=temperature, effective_sample_size=size
        )


@dataclass(frozen=True)
class ModelBased:
    """MORE: climb a quadratic model of the standardised returns within both bounds."""

    rule: ClassVar[str] = "more"
    epsilon: float
    kappa: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("kappa", self.kappa, infinite=True)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        std, J = np.sqrt(prior.variances), standardise(returns)
        posterior, eta, omega = more_update(std, samples, J, full, self.epsilon, self.kappa)
        return posterior, UpdateInfo(eta=eta, omega=omega, effective_sample_size=float(returns.size))


@dataclass(frozen=True)
class CrossEntropy:
    """CEM: maximum likelihood on the n_elite best episodes."""

    rule: ClassVar[str] = "cem"
    n_elite: int

    def __post_init__(self) -> None:
        whole("n_elite", self.n_elite, 2)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        d = elite_weights(returns, self.n_elite)
        posterior = weighted_fit(np.sqrt(prior.variances), samples, d, full)
        return posterior, UpdateInfo(effective_sample_size=effective_size(d))


@dataclass(frozen=True)
class NaturalGradient:
    """NES: a step along the natural gradient of the rank-shaped return (Wierstra 2014).

    With z = y / std and utilities u:  mean += learning_rate std sum u z,  covariance (whitened)
    = exp(covariance_rate sum u (z z' - I)), or its diagonal.

    Attributes
    ----------
    learning_rate
        Of the mean; 1 is the full natural gradient.
    covariance_rate
        None takes the usual (9 + 3 log n) / (5 n sqrt n), or (3 + log n) / (5 sqrt n) if diagonal.
    """

    rule: ClassVar[str] = "nes"
    learning_rate: float
    covariance_rate: float | None

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        if self.covariance_rate is not None:
            positive("covariance_rate", self.covariance_rate)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        u, std = rank_utilities(returns), np.sqrt(prior.variances)
        z, n = samples / std, std.size
        mean = self.learning_rate * std * (u @ z)
        info = UpdateInfo(effective_sample_size=1 / float(np.square(u + 1 / u.size).sum()))
        if full:
            rate = self.covariance_rate or (9 + 3 * math.log(n)) / (5 * n * math.sqrt(n))
            growth, V = np.linalg.eigh(rate * (z.T * u) @ z)  # sum u = 0, so the -I drops out
            growth = limited(growth)
            rows = np.exp(growth / 2)[:, None] * V.T
            return from_whitened(mean, std, rows, float(growth.sum())), info
        rate = self.covariance_rate or (3 + math.log(n)) / (5 * math.sqrt(n))
        return unmixed(mean, prior.variances * np.exp(limited(rate * (u @ np.square(z))))), info


def limited(growth: FloatArray) -> FloatArray:
    """Log growth of variances within one update; told samples may lie far away, and exp has its limits."""
    return np.clip(growth, -5.0, 5.0)


@dataclass(frozen=True)
class PlainGradient:
    """ES: a step along the natural gradient of the standardised return; the covariance stays.

    mean += learning_rate std mean(J z), with J the standardised returns and z = y / std.
    """

    rule: ClassVar[str] = "es"
    learning_rate: float

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)

    def __call__(self, prior: Gaussian, samples: FloatArray, returns: FloatArray, full: bool) -> Result:
        """See :class:`Update`."""
        std = np.sqrt(prior.variances)
        step = standardise(returns) @ (samples / std) / returns.size
        info = UpdateInfo(effective_sample_size=float(returns.size))
        return unmixed(self.learning_rate * std * step, prior.variances), info


@dataclass(frozen=True)
class RelevanceSurrogate:
    """Climb a quadratic surrogate of the kept episodes as far as it predicts held-out returns.

    It remembers more than a belief: :mod:`klimb.search` hands what to :mod:`klimb.surrogate`.
    """

    rule: ClassVar[str] = "surrogate"


RULES: dict[str, type[Update | RelevanceSurrogate]] = {
    rule.rule: rule
    for rule in (
        RewardWeighted,
        RelativeEntropy,
        ConstrainedRelativeEntropy,
        ModelBased,
        CrossEntropy,
        NaturalGradient,
        PlainGradient,
        RelevanceSurrogate,
    )
}
