"""How much of the returns is noise: what was measured, and what it makes up of what is unexplained."""

from __future__ import annotations

import math

import numpy as np

from klimb._validation import FloatArray, IntArray
from klimb.surrogate.twins import TWICE, pairs


def measured_noise(returns: FloatArray, twin: IntArray, marks: tuple[int, int] = TWICE) -> FloatArray:
    """Variance of the noise of the returns (N,) by each of the pairs with these marks: of the mean itself."""
    twice = pairs(twin, marks)
    with np.errstate(over="ignore"):  # of huge returns: whatever is unexplained is then noise
        noise: FloatArray = np.square(returns[twice + 1] - returns[twice]) / 2
    return noise


def noise_variance(noise: FloatArray, spread: float) -> float:
    """The average of the measurements (P,) in units of the spread squared, of which it is all at most."""
    if noise.size == 0:
        return 0.0
    with np.errstate(over="ignore"):
        return min(1.0, float(noise.mean()) / spread / spread)


def noiseless(noise: FloatArray) -> bool:
    """Whether noise was measured, and all measurements (P,) say that there is none, to the bit."""
    return noise.size > 0 and not noise.any()


def noise_share(measured: float, unexplained: float) -> float:
    """What the noise makes up of what is unexplained, both of them variances."""
    return min(1.0, measured / unexplained)


def largest_share(noise: FloatArray, share: float) -> float:
    """`share` of noise if its P measurements are two standard errors too low: each is sqrt(2/P) of a mean."""
    return min(1.0, share * (1 + 2 * math.sqrt(2 / noise.size))) if noise.size else 0.0


def no_noise(noise: FloatArray, share: float) -> float:
    """How sure it is, from 0 to 1, that what is unexplained is no noise, of which it seems to be `share`.

    It is 1 for what is :func:`noiseless`. Else one more is counted that says that all of it is noise.
    """
    if noiseless(noise):
        return 1.0
    return (1 - share) * noise.size / (noise.size + 1)


def hidden_share(amplitudes: FloatArray, noise: float) -> float:
    """Share of the measured noise, a variance, in all that no quadratic explains, by the likelihood."""
    return noise / (noise + float(amplitudes[3] + amplitudes[4] / 2)) if noise > 0 else 0.0
