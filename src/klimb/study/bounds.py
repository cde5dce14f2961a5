"""Samples within bounds: parameters outside are drawn anew, or moved to the nearest bound."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian


def outside(theta: FloatArray, low: FloatArray, high: FloatArray) -> bool:
    """Whether any parameter lies beyond its bounds."""
    return bool(((theta < low) | (theta > high)).any())


def redraw(
    sampled: Gaussian, theta: FloatArray, low: FloatArray, high: FloatArray, rng: np.random.Generator
) -> FloatArray:
    """Draw every parameter of `theta` (n,) that lies outside anew: within its bounds, given all the others.

    With independent parameters this is the same as drawing until all lie inside, which for a hundred of
    them would take for ever. With dependent ones it is one sweep of Gibbs sampling over those outside.
    """
    theta = theta.copy()
    for j in np.flatnonzero((theta < low) | (theta > high)):
        center, std = conditional(sampled, theta, int(j))
        theta[j] = truncated_normal(rng.random(), center, std, float(low[j]), float(high[j]))
    return theta


def conditional(gaussian: Gaussian, theta: FloatArray, j: int) -> tuple[float, float]:
    """Mean and standard deviation of parameter j given the other entries of `theta`.

    With the precision P = U diag(1 / variances) U', the mean is theta_j - (P (theta - mu))_j / P_jj and the
    variance 1 / P_jj.
    """
    place = int(np.searchsorted(gaussian.mixed, j))
    if place == gaussian.mixed.size or gaussian.mixed[place] != j:
        return float(gaussian.mean[j]), math.sqrt(gaussian.variances[j])
    axis, variances = gaussian.rotation[place], gaussian.variances[gaussian.mixed]
    z = gaussian.rotation.T @ (theta - gaussian.mean)[gaussian.mixed]
    precision = float(np.square(axis) @ (1 / variances))
    return float(theta[j] - axis @ (z / variances) / precision), precision**-0.5


def truncated_normal(u: float, center: float, std: float, low: float, high: float) -> float:
    """The u-quantile, u in [0, 1), of a normal distribution cut off at `low` and `high`; exact far out."""
    a, b = (low - center) / std, (high - center) / std
    sign = 1.0
    if a > 0:  # the left tail is the one with all its digits
        a, b, sign = -b, -a, -1.0
    with np.errstate(divide="ignore"):
        log_p = np.logaddexp(log_ndtr(a) + np.log1p(-u), log_ndtr(b) + np.log(u))
    drawn = center + sign * std * float(ndtri_exp(log_p))
    return min(max(drawn, low), high)
