"""How far an update goes: where the mean moves, and what becomes of the shape and the scale of the belief."""

from __future__ import annotations

import math

import numpy as np

from klimb._validation import FloatArray
from klimb.fitting import largest_step
from klimb.surrogate.model import FEWEST_KEPT, Fit, bend
from klimb.weighting import rank_utilities

# KL(new || old) in nats that an update without any skill may take, as much as :func:`widening` asks for, and
# the number of new episodes for which it may.
LARGEST_STEP = 4.0
EPISODES_PER_STEP = 8
# However many episodes are new, no more than this is added to the log of all standard deviations at once.
LARGEST_CHANGE = 0.5
# A variance of noise below this share of all is counted as this: what it is divided by stays in range.
SMALLEST_NOISE = 1e-200
# Where the mean goes the same way in two updates in a row, the belief is at least this share of either step
# wide along it; but its variance there no more than doubles.
SHARE_OF_WAY, LARGEST_WIDENING = 0.5, math.sqrt(2)
# On a plateau the belief closes in by this share of what it may even if that has not paid so far.
CLOSING_ANYHOW = 0.2


def pace(n_new: int, n: int) -> float:
    """How far an update may go, in proportion to its new episodes: 1 for :data:`EPISODES_PER_STEP`."""
    return min(n_new / EPISODES_PER_STEP, max(1.0, LARGEST_CHANGE / change_of_step(n)))


def change_of_step(n: int) -> float:
    """What a step of pace 1 adds at most to the log of all standard deviations: some 4 nats in all."""
    return 2 / math.sqrt(n)


def odds(fit: Fit, n_kept: int, wide: float) -> float:
    """What is explained over what is not, of the kept episodes or of the belief as it is now.

    The first is the skill. But as long as the belief closes in, most episodes lie far outside of it, and a
    few steep directions that explain them say little of what is left: with few episodes the second counts,
    which gives way to the first as they become :data:`FEWEST_KEPT`; but only by a share 1 / `wide` where
    samples are drawn wider than the belief.
    """
    kept, here = fit.skill, min(fit.skill, 1 - fit.unexplained / fit.variance)
    few = 1 - min(1.0, n_kept / FEWEST_KEPT) / wide
    chances: float = (kept / (1 - kept)) ** (1 - few) * (here / (1 - here)) ** few
    return chances


def climb(g: FloatArray, h: FloatArray, bound: float) -> FloatArray:
    """Maximise g.d + sum h d^2 / 2 with |d|^2 / 2 <= bound, which is above 0."""
    if not g.any():
        return np.zeros_like(g)
    moved = g != 0
    slope, above = g[moved], max(0.0, float(h.max())) - h[moved]
    least = float(above.min())

    def half_length(eta: float) -> float:
        if least + eta <= 0:
            return math.inf
        way = slope / (above + eta)
        return 0.5 * float(way @ way)

    d = np.zeros_like(g)
    d[moved] = slope / (above + largest_step(half_length, bound))
    return d


def filtered(
    d: FloatArray,
    g: FloatArray,
    h: FloatArray,
    noise: float,
    told_by: FloatArray,
    least: float,
) -> FloatArray:
    """As much of the way d (n,) to the surrogate's optimum as new episodes justify.

    The belief has learned from the other kept episodes before, and to follow these again would be to follow
    their noise. Seen from the belief, new returns with noise of the variance `noise` tell where the optimum
    is with the precision M = (gg' + HH) `told_by` / noise, where `told_by` (n,) are sums of their squared
    distances. A filter that knows I before goes (I + M)^-1 M d: here that of the new episodes at `least`, and
    all of it without noise.
    """
    if noise <= 0:
        return d
    with np.errstate(over="ignore"):
        told = told_by / max(noise, SMALLEST_NOISE)
        own = 1 + told * np.square(h)
        u = np.sqrt(told) * g
        v = u / own
        rest = d / own  # (I + M)^-1 d, by Sherman and Morrison
        rest -= v * (float(u @ rest) / (1 + float(u @ v)))
    return d - (1 - least) * rest


def closing(h: FloatArray, skill: float) -> FloatArray:
    """Share of the closing in that each direction takes part in, (n,), by its curvature h (n,).

    As far as the surrogate is right, only those take part in full whose squared curvature is half of the
    average or more: the others are still to be looked at, once the steep ones hide them no more.
    """
    bent = np.square(h)
    if not bent.any():
        return np.ones_like(h)
    part: FloatArray = 1 - skill * (1 - np.minimum(1.0, 2 * bent / bent.mean()))
    return part


def widening(amplitudes: FloatArray, V: FloatArray) -> float:
    """Log factor of all standard deviations: up where the slope counts for more than the curvature.

    At most :func:`change_of_step`, up or down.
    """
    slope, curvature = amplitudes[0], bend(amplitudes, V)
    return change_of_step(len(V)) * float((slope - curvature) / (slope + curvature))


def bounded_step(d: FloatArray, p: FloatArray, bound: float) -> tuple[FloatArray, FloatArray, float]:
    """Mean, precision and eta of the Gaussian that minimises KL(. || target) + eta KL(. || old).

    The target has the mean d and the precision p, the old one 0 and 1. Eta is the smallest with
    KL(new || old) <= bound: the new precision is (p + eta) / (1 + eta), the new mean p d / (p + eta).
    """

    def towards(eta: float) -> tuple[FloatArray, FloatArray]:
        return p * d / (p + eta), (p + eta) / (1 + eta)

    eta = largest_step(lambda eta: divergence(*towards(eta)), bound)
    return *towards(eta), eta


def divergence(d: FloatArray, p: FloatArray) -> float:
    """KL from the Gaussian with mean d and precision p to that with 0 and 1, in nats."""
    return 0.5 * float(np.sum(1 / p - 1 + np.log(p) + np.square(d)))


def keeps_going(way: FloatArray, step: FloatArray, far: float) -> tuple[FloatArray, float]:
    """Direction of the former step of the mean, and the factor of the standard deviation along it, 1 or more.

    A mean that leaves its belief the same way again has a belief that is too narrow there: all directions
    close in alike while they are not told apart, and a flat one that closed in with steep ones would be
    crept along for ever. `way` and `step` (n,) are in units of the belief of their time.
    """
    length = float(np.linalg.norm(way))
    if length == 0:
        return np.zeros_like(step), 1.0
    ahead: FloatArray = way / length
    again = min(float(step @ ahead), length)
    return ahead, min(max(SHARE_OF_WAY * again, 1.0), LARGEST_WIDENING**far)


def gather(z: FloatArray, returns: FloatArray, n_new: int) -> tuple[FloatArray, float]:
    """Go to the middle of what is above the plateau, and close in on it as long as that pays.

    Returns
    -------
    d : (n,)
        Average of z (N, n), weighted by how far the returns (N,) are above the worst; no longer than
        :data:`LARGEST_STEP` allows.
    scale
        Log factor of all standard deviations: 0 on the way, then by how much more the later half of the
        episodes has reached than the earlier half, or the new ones than those before if they are more than
        half. It is at most as much as :func:`widening` takes, so much if all are new, and never above 0.
    """
    weights = np.ldexp(returns, -np.frexp(np.abs(returns).max())[1])  # exact, so that no difference is lost
    weights = weights - weights.min()
    d = weights @ z / weights.sum()
    way = float(np.linalg.norm(d))
    longest = math.sqrt(2 * LARGEST_STEP)
    if way > longest:
        return d * (longest / way), 0.0
    split = min(weights.size // 2, weights.size - n_new)
    earlier, later = weights[:split].mean() if split else 0.0, weights[split:].mean()
    gained = float((later - earlier) / (later + earlier))
    return d, -change_of_step(z.shape[1]) * min(max(CLOSING_ANYHOW + gained, 0.0), 1.0)


def towards_better(z: FloatArray, returns: FloatArray, n_new: int) -> FloatArray:
    """Step (n,) towards the better ones of the latest episodes, by their ranks alone.

    At most as far as samples usually lie. With fewer new ones than :data:`EPISODES_PER_STEP` so many of the
    latest count, and the step is that share of it.
    """
    latest = slice(-max(n_new, EPISODES_PER_STEP), None)
    d = rank_utilities(returns[latest]) @ z[latest]
    longest = math.sqrt(z.shape[1]) / max(float(np.linalg.norm(d)), 1e-300)
    return d * (min(1.0, n_new / EPISODES_PER_STEP) * min(1.0, longest))
