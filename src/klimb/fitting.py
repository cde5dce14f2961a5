"""Weighted samples to a Gaussian, with and without bounds on the step.

Everything is whitened by the old standard deviations, so that the old distribution is N(0, I). Symbols:
whitened samples y (N, n), weights d (N,), weighted mean delta (n,), weighted covariance S about it (n, n),
multipliers eta of the divergence bound epsilon and omega of the entropy bound kappa.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, from_whitened, unmixed

# Multipliers are searched between exp(-LARGEST_LOG) and exp(LARGEST_LOG), whose squares are still numbers.
LARGEST_LOG = 280.0

# A whitened variance below this is as good as none; its square is still a number.
NO_VARIANCE = 1e-140

# Without a bound, a direction in which the weighted samples do not vary keeps this share of its old
# variance: N samples span at most N - 1 directions, and the others would lose theirs for ever.
VARIANCE_FLOOR = 1e-4


@dataclass(frozen=True, eq=False)
class Moments:
    """Weighted samples seen from the old distribution N(0, I).

    Attributes
    ----------
    delta : (n,)
    rows : (k, n)
        S = rows' rows.
    """

    delta: FloatArray
    rows: FloatArray


def weighted_moments(std: FloatArray, samples: FloatArray, weights: FloatArray) -> Moments:
    """Whiten the samples that count and take their weighted moments."""
    counted = weights > 0
    d, y = weights[counted], samples[counted] / std
    delta = d @ y
    y -= delta
    y *= np.sqrt(d)[:, None]
    return Moments(delta, y)


def weighted_fit(std: FloatArray, samples: FloatArray, weights: FloatArray, full: bool) -> Gaussian:
    """The Gaussian of maximum weighted likelihood, in local coordinates."""
    moments = weighted_moments(std, samples, weights)
    mean = std * moments.delta
    if not full:
        S = np.square(moments.rows).sum(0) + VARIANCE_FLOOR
        return unmixed(mean, np.square(std) * S)
    s = np.square(np.linalg.svd(moments.rows, compute_uv=False))
    rest = (std.size - s.size) * math.log(VARIANCE_FLOOR)
    log_det = float(np.log(s + VARIANCE_FLOOR).sum()) + rest
    return from_whitened(mean, std, moments.rows, log_det, ridge=VARIANCE_FLOOR)


@dataclass(frozen=True)
class Trial:
    """What a multiplier eta leads to: A = (S + eta I + eta/(1+eta) delta delta') / (1 + eta) and tau.

    The new covariance is A / tau, where tau = (1 + eta - omega) / (1 + eta) is 1 unless the entropy bound
    forces it below.
    """

    kl: float
    log_det: float
    tau: float


def constrained_fit(
    std: FloatArray, samples: FloatArray, weights: FloatArray, full: bool, epsilon: float, kappa: float
) -> tuple[Gaussian, float, float]:
    """The Gaussian of maximum weighted likelihood with KL(old || new) <= epsilon and entropy drop <= kappa.

    Stationarity of the Lagrangian gives, for multipliers eta and omega,

        mean  = delta / (1 + eta)
        Sigma = (S + eta I + eta/(1+eta) delta delta') / (1 + eta - omega)

    where the entropy bound fixes omega for every eta. What remains is the root of one monotone function:
    KL(eta) = epsilon. For a diagonal Gaussian the same holds with the diagonals of S and delta delta'.

    Returns
    -------
    gaussian
        In local coordinates.
    eta, omega
    """
    moments = weighted_moments(std, samples, weights)
    trial = full_trials(moments, kappa) if full else diagonal_trials(moments, kappa)
    eta = largest_step(lambda eta: trial(eta).kl, epsilon)
    found = trial(eta)
    mean = std * moments.delta / (1 + eta)
    c = eta / (1 + eta) / (1 + eta)
    if full:
        rows = np.vstack([moments.rows / math.sqrt(1 + eta), math.sqrt(c) * moments.delta])
        rows /= math.sqrt(found.tau)
        log_det = found.log_det - std.size * math.log(found.tau)
        gaussian = from_whitened(mean, std, rows, log_det, ridge=eta / (1 + eta) / found.tau)
    else:
        A = (np.square(moments.rows).sum(0) + eta) / (1 + eta) + c * np.square(moments.delta)
        gaussian = unmixed(mean, np.square(std) * (A / found.tau))
    return gaussian, eta, (1 + eta) * (1 - found.tau)


def full_trials(moments: Moments, kappa: float) -> Callable[[float], Trial]:
    """Divergence and determinant for any eta in O(n), after one singular value decomposition.

    In the eigenbasis of S, A is diagonal plus rank one: its determinant by the matrix determinant lemma, its
    inverse by Sherman and Morrison.
    """
    n = moments.delta.size
    _, lengths, V = np.linalg.svd(moments.rows, full_matrices=False)
    s, b = np.square(lengths), V @ moments.delta
    flat = n - s.size  # directions without any weighted sample
    b_flat = float(np.square(moments.delta - b @ V).sum()) if flat else 0.0
    b = np.square(b)

    def trial(eta: float) -> Trial:
        if eta == 0 and (flat or s.min() < NO_VARIANCE):
            return Trial(math.inf, -math.inf, 1.0)
        a = (s + eta) / (1 + eta)
        c = eta / (1 + eta) / (1 + eta)
        log_det = float(np.log(a).sum())
        trace, beta, gamma = float((1 / a).sum()), float((b / a).sum()), float((b / a**2).sum())
        if flat:
            a_flat = eta / (1 + eta)
            log_det -= flat * math.log1p(1 / eta)
            trace += flat / a_flat
            beta += b_flat / a_flat
            gamma += b_flat / a_flat**2
        log_det += math.log1p(c * beta)
        trace -= c * gamma / (1 + c * beta)
        shift = beta / (1 + c * beta) / (1 + eta) ** 2
        return bounded(n, trace + shift, log_det, kappa)

    return trial


def diagonal_trials(moments: Moments, kappa: float) -> Callable[[float], Trial]:
    """The same for a diagonal covariance."""
    n = moments.delta.size
    s, b = np.square(moments.rows).sum(0), np.square(moments.delta)

    def trial(eta: float) -> Trial:
        a = (s + eta) / (1 + eta) + eta / (1 + eta) / (1 + eta) * b
        if a.min() < NO_VARIANCE:
            return Trial(math.inf, -math.inf, 1.0)
        return bounded(n, float(((1 + b / (1 + eta) ** 2) / a).sum()), float(np.log(a).sum()), kappa)

    return trial


def bounded(n: int, quadratic: float, log_det: float, kappa: float) -> Trial:
    """Make tau as large as the entropy bound allows, and take the divergence.

    `quadratic` is tr A^-1 + mean' A^-1 mean. The entropy drop is (n log tau - log det A) / 2.
    """
    log_tau = min(0.0, (log_det + 2 * kappa) / n)
    tau = math.exp(log_tau)
    return Trial(0.5 * (tau * quadratic - n + log_det - n * log_tau), log_det, tau)


def largest_step(divergence: Callable[[float], float], epsilon: float) -> float:
    """The smallest multiplier eta >= 0 with divergence(eta) <= epsilon, for a decreasing divergence."""
    if divergence(0.0) <= epsilon:
        return 0.0

    def excess(log_eta: float) -> float:
        return divergence(math.exp(log_eta)) - epsilon

    low = high = 0.0
    step = 1.0
    if excess(0.0) > 0:
        while excess(high) > 0:
            if high > LARGEST_LOG:  # the samples are that far away, or the bound that small: stay
                return math.exp(high)
            low, high, step = high, high + step, min(2 * step, 64.0)
    else:
        while excess(low) <= 0:
            if low < -LARGEST_LOG:
                return math.exp(low)
            high, low, step = low, low - step, min(2 * step, 64.0)
    return math.exp(brentq(excess, low, high, xtol=1e-15, rtol=1e-15))
