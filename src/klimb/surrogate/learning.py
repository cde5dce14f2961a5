"""One update of the belief by the surrogate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, from_whitened, unmixed
from klimb.surrogate.model import FEWEST_KEPT, LARGEST_SKILL, Fit, fit_surrogate, unknowns
from klimb.surrogate.noise import largest_share, no_noise, noise_share, noise_variance
from klimb.surrogate.relevance import blend, prior_shape, total
from klimb.surrogate.returns import RANKS, VALUES, on_plateau, ranked, scaled
from klimb.surrogate.step import (
    LARGEST_CHANGE,
    LARGEST_STEP,
    bounded_step,
    change_of_step,
    climb,
    closing,
    divergence,
    filtered,
    gather,
    keeps_going,
    odds,
    pace,
    towards_better,
    widening,
)
from klimb.surrogate.twins import Twins

# Nats by which an episode may move the mean where there is no noise: a pair of them tells one direction, in
# which a step of one standard deviation is taken.
NATS_PER_EPISODE = 0.25
# Nats for every parameter per kept episode: B of them, B/2 pairs, tell sqrt(B/2n) of the slope of n
# parameters, so that a step of 4 n/B nats goes two standard deviations along the true one. So it is with far
# more parameters than episodes; with as many, the skill tells how far to go.
NATS_PER_PARAMETER = 4.0
# Nats that the mean may go where all that is unexplained is noise.
NATS_IN_NOISE = 0.5
# A standard deviation never falls below this share of the largest: rounding would eat it.
SHORTEST_AXIS = 1e-5
# By this share of the pace the belief closes in where good returns are rare and there is no noise.
BOLD = 0.3
# With a skill of no more than this, returns are hardly explained. Then their ranks are followed instead of
# their values.
EXPLAINED = 0.1


class Memory(NamedTuple):
    """What the surrogate carries from update to update, besides the episodes.

    Attributes
    ----------
    relevance : (n, n), or (n,) if diagonal
        W in the whitened coordinates of the belief.
    amplitudes : (2, 6)
        t of either view of the returns, in units of its squared spread; all 0 for one that was not taken yet.
    spread : (2,)
        These spreads.
    way : (n,)
        Where the mean went, in the whitened coordinates of the belief, but as long as it was in those before.
    rest : (1,)
        What was unexplained of the values of held-out returns, in units of their squared spread.
    """

    relevance: FloatArray
    amplitudes: FloatArray
    spread: FloatArray
    way: FloatArray
    rest: FloatArray


class Learned(NamedTuple):
    """What an update yields: the posterior in local coordinates, what to remember, and how it came about."""

    posterior: Gaussian
    memory: Memory
    seen: FloatArray
    """What this update says of the relevance, in the whitened coordinates of the prior; like W."""
    noise: float
    """The share of noise that says how far to look: see :class:`Chance`."""
    rough: float
    """Share of held-out returns that is neither explained nor noise where they were drawn; 0 on a plateau."""
    walks: bool
    """Whether the mean went towards the better ones, as good returns are rare and nothing is explained."""
    eta: float
    skill: float


class Chance(NamedTuple):
    """What noise makes up of what is unexplained of held-out returns."""

    share: float
    """Noise of the mean, in all that is unexplained; 0 on a plateau and for a bold search."""
    look: float
    """The share that says how far to look; 0 where the former is.

    It is that of episodes no further away than new ones, where they can tell a quadratic: of those far away
    more is unexplained, for want of others there. The fewer they are for that, the more the others count too.
    """
    there: float
    """Noise where episodes were drawn, if that is more."""
    certain: float
    """c: how sure it is, from 0 to 1, that what is unexplained is no noise."""


class View(NamedTuple):
    """What the returns look like: the fit of their values or of their ranks, and the part of chance in it.

    `bold` is whether good returns are rare, and nothing is explained; the rest is for :class:`Memory`.
    """

    fit: Fit
    chance: Chance
    plateau: bool
    bold: bool
    amplitudes: FloatArray
    spread: FloatArray
    rest: FloatArray


class Scope(NamedTuple):
    """How much is known, of how much noise, and how far an update may go.

    N episodes of n parameters, of which `n_new` are new, tell the share `told` of a quadratic; `far` is the
    :func:`pace`. `reach` (n,) is by how much new samples vary more than the belief along the axes of H, and
    `wide` the average of that as far as the episodes tell a quadratic.
    """

    n: int
    N: int
    n_new: int
    far: float
    reach: FloatArray
    told: float
    wide: float
    noise: FloatArray
    """Its variance where the mean is, as often as it was measured, (P,)."""


def learn(
    prior: Gaussian,
    x: FloatArray,
    returns: FloatArray,
    twins: Twins,
    full: bool,
    memory: Memory | None,
    n_new: int,
    noise: FloatArray,
    exploration: FloatArray | None = None,
    rotation: FloatArray | None = None,
    rare: bool = False,
    away: FloatArray | None = None,
    look: bool = False,
) -> Learned:
    """Move the belief as far as the surrogate of these episodes can be trusted.

    Parameters
    ----------
    prior
        The belief in its local coordinates: around 0, with a diagonal covariance.
    x : (N, n), returns : (N,)
        Episodes as parameters around the mean of the belief, not all returns equal.
    twins
        Which of them mirror each other.
    full
        Whether the covariance is full or diagonal.
    memory
        Of the update before; None at first.
    n_new
        How many of the episodes are new.
    noise : (P,)
        Variance of the noise of a return of the mean, as often as it was measured.
    exploration : (n,)
        By how much the new samples vary more than the belief along each coordinate; None: not at all.
    rotation : (n, n)
        Columns are the axes of the local coordinates; None if these are the parameters themselves.
    rare
        Whether good returns are rare, so that it is worth while to be bold as long as nothing is explained.
    away : (k,)
        Variance of the noise away from the mean, as often as it was measured; None: not at all.
    look
        Whether what is taken for noise is ruggedness, as the search looks around.
    """
    n, N, std = prior.n_parameters, returns.size, np.sqrt(prior.variances)
    z = (x if rotation is None else x @ rotation) / std
    memory = first_memory(n, full) if memory is None else memory
    away = np.empty(0) if away is None else away
    V = prior_shape(memory.relevance)
    fit_to = partial(
        fit_surrogate,
        z,
        twins=twins,
        V=V,
        std=std,
        rotation=rotation,
        exploration=exploration,
        parameters=x,
    )
    told = min(1.0, N / unknowns(n, full))  # of a quadratic
    view = looked_at(fit_to, returns, z, memory, noise, away, rare, told)
    fit, chance, plateau = view.fit, view.chance, view.plateau
    unit = math.sqrt(fit.variance)
    g, H, Q = fit.gradient / unit, fit.hessian / unit, fit.skill
    h, axes = np.linalg.eigh(H) if full else (H, None)
    slope = turned(axes, g)
    # squared distances of the new samples along the axes, on average
    reach = np.ones(n) if exploration is None else exploration
    reach = reach if axes is None else np.square(axes).T @ reach
    # and by how much that is more than the belief's, as far as the episodes can tell a quadratic
    wide = 1.0 if exploration is None else float(exploration.mean()) ** told
    scope = Scope(n, N, n_new, pace(n_new, n), reach, told, wide, noise)

    walks = view.bold and (look or not noise.any())
    if plateau:
        d, scale = gather(z, returns, n_new)
        d = turned(axes, d)
    else:
        bound = way_allowed(view, scope)
        d = towards_optimum(slope, h, bound, view, scope)
        if walks:
            d = turned(axes, towards_better(z, returns, n_new))
        scale = change_of_scale(d, bound, widening(fit.amplitudes, V), view, scope)
    p = target(slope, h, scale, view, scope)
    nats = scope.far**2 * LARGEST_STEP / (1 - Q)
    if walks:
        nats += float(d @ d) / 2
    d, p, eta = bounded_step(d, p, nats)

    rate = n_new / (n_new + 2 * N)  # an average over about two lengths of the buffer
    if axes is None:
        seen = np.square(g) + np.square(H)
        W = blend(memory.relevance, seen, rate) / p
        posterior, way = unmixed(std * d, np.square(std) / p), np.zeros(n)
    else:
        seen = np.outer(g, g) + H @ H.T  # symmetric, and said so: BLAS takes half the time
        W = blend(memory.relevance, seen, rate)
        tells_flat = returns.size >= max(FEWEST_KEPT, 2 * n) and not plateau
        before = memory.way if tells_flat else np.zeros(n)
        posterior, way = moved(std, axes, d, p, before, nats, scope.far)
        T = posterior.rotation * np.sqrt(posterior.variances) / std[:, None]  # z = d + T z'
        W = T.T @ W @ T
    remembered = Memory(W / total(W), view.amplitudes, view.spread, way, view.rest)
    wide_look, rough = chance.look, 0.0 if plateau else (1 - Q) * (1 - chance.there)
    return Learned(posterior, remembered, seen, wide_look, rough, walks, eta, Q)


def looked_at(
    fit_to: Callable[..., Fit],
    returns: FloatArray,
    z: FloatArray,
    memory: Memory,
    noise: FloatArray,
    away: FloatArray,
    rare: bool,
    told: float,
) -> View:
    """Fit the values of the returns (N,) of samples z (N, n), or their ranks where values explain nothing.

    A quadratic of the values is worth more where there is one, as it says how far to go. But returns that
    jump, as where a puck goes into the goal or not, are a few large values among many small ones: all that is
    fitted are those few, and what looks like curvature is none. The episodes tell the share `told` of one.
    """
    length, plateau = np.einsum("ij,ij->i", z, z), on_plateau(returns)
    amplitudes, spread = memory.amplitudes.copy(), memory.spread.copy()

    def fitted(view: int, y: FloatArray, size: float, measured: float) -> Fit:
        fit = fit_to(y, t=carried(amplitudes[view], spread[view], size), measured=measured)
        amplitudes[view], spread[view] = fit.amplitudes, size
        return fit

    y, size = scaled(returns, length)
    measured = noise_variance(noise, size)
    # where episodes were drawn: the larger of both, as the noise may grow away from the mean
    drawn = max(measured, noise_variance(away, size))
    fit = fitted(VALUES, y, size, measured)
    rest = np.array([fit.unexplained])
    bold = rare and not plateau and fit.skill <= EXPLAINED
    counted = 0.0 if plateau or bold else measured
    share, near = noise_share(counted, fit.unexplained), noise_share(counted, fit.nearby)
    chance = Chance(
        share=share,
        look=math.sqrt(near ** (1 + told) * share ** (1 - told)),
        there=noise_share(drawn, fit.unexplained),
        certain=no_noise(noise, noise_share(drawn, min(1.0, fit.unexplained))),
    )
    # ranks of noise are no better than values, and a plateau has next to none
    if not plateau and fit.skill <= EXPLAINED and (bold or not noise.any()):
        fit = fitted(RANKS, *ranked(returns, length), measured=0.0)
    return View(fit, chance, plateau, bold, amplitudes, spread, rest)


def way_allowed(view: View, scope: Scope) -> float:
    """Nats that the mean may go: |d|^2 / 2."""
    # without skill, by the share of new episodes: noise must not stop the search for good
    bound = max(odds(view.fit, scope.N, scope.wide), scope.n_new / max(FEWEST_KEPT, scope.N))
    # and by their number as far as what is unexplained is no noise: they are too few
    few = max(NATS_PER_EPISODE * scope.n_new, NATS_PER_PARAMETER * (scope.n / scope.N - 1))
    if view.bold:  # further out, whatever the landscape is like there
        few = max(few, LARGEST_STEP * scope.far)
    return max(bound, view.chance.certain**2 * few, NATS_IN_NOISE * view.chance.share)


def towards_optimum(slope: FloatArray, h: FloatArray, bound: float, view: View, scope: Scope) -> FloatArray:
    """Step of the mean (n,) along the axes of H, as far as it may go and as new episodes justify."""
    fit, share = view.fit, view.chance.share
    # each direction has its share of the held-out error: where the slope is no more, a step is about 1. What
    # noise hides is no reason for doubt: the filter goes as far as it tells
    doubt = 0.0 if view.bold else math.sqrt((1 - fit.skill) / scope.n) * (1 - share)
    hidden = share * fit.unexplained / fit.variance
    d = climb(slope, h - doubt, bound)
    return filtered(d, slope, h, hidden, scope.n_new * scope.reach, scope.n_new / scope.N)


def change_of_scale(d: FloatArray, bound: float, scale: float, view: View, scope: Scope) -> float:
    """Log factor of all standard deviations, at the pace of 1; `scale` is what the amplitudes ask for."""
    squared, Q = float(d @ d), view.fit.skill
    if Q == LARGEST_SKILL and squared > 1.98 * bound:
        scale = max(scale, 0.0)  # all is explained, and the way is longer than an update may go
    if scale > 0:  # few episodes are no reason to try anything bolder than what was asked for
        scale *= min(1.0, scope.N / FEWEST_KEPT)
        if scope.noise.any():  # noise looks like a slope now and then: believe what held-out returns confirm,
            scale *= Q * min(1.0, squared)  # and what leads out of the belief
    elif view.bold:
        scale *= BOLD * view.chance.certain
    return scale


def target(slope: FloatArray, h: FloatArray, scale: float, view: View, scope: Scope) -> FloatArray:
    """Precision (n,) of the belief to go for along the axes of H, in units of the old one's."""
    fit, share = view.fit, view.chance.share
    # as much of the curvature as the skill supports, positive definite by construction
    explained = float(slope @ slope + np.square(h).sum() / 2)
    phi = min(1.0, fit.skill / explained) if explained > 0 else 0.0
    # at first a few steep directions are all that is seen: the others wait for their turn
    waits = scale < 0 and not view.plateau and scope.N < FEWEST_KEPT
    part = closing(h, fit.skill) if waits else 1.0
    p = (1 - phi * h / max(1.0, 2 * float(h.max()))) * np.exp(-2 * scope.far * scale * part)
    if share == 0:
        return p
    # where all that is unexplained is noise, the belief is what the episodes tell of the optimum
    told = scope.n_new * scope.reach * np.square(h) * fit.variance / fit.unexplained
    told = np.minimum(told, math.expm1(2 * max(LARGEST_CHANGE, change_of_step(scope.n))))
    # what wide samples leave unexplained is less within the belief
    inside = largest_share(scope.noise, share / (share + (1 - share) / scope.wide**2))
    wider = math.exp(-2 * scope.far * max(scale, 0.0) * scope.told * inside)
    mixed: FloatArray = p ** (1 - inside) * (1 + told) ** inside * wider
    return mixed


def moved(
    std: FloatArray,
    axes: FloatArray,
    d: FloatArray,
    p: FloatArray,
    before: FloatArray,
    nats: float,
    far: float,
) -> tuple[Gaussian, FloatArray]:
    """The belief with the mean d and the precision p along the axes of H, and the way that its mean went.

    Where it goes on along the way `before`, it opens along that, if the bound on the divergence has room.
    """
    rows, step, log_det = axes.T / np.sqrt(p)[:, None], axes @ d, -float(np.log(p).sum())
    ahead, factor = keeps_going(before, step, far)
    if factor > 1:
        along = rows @ ahead
        more = (factor**2 - 1) * float(along @ along) / 2 - math.log(factor)  # nats that it takes
        if divergence(d, p) + more <= nats:
            rows += np.outer(along, (factor - 1) * ahead)
            log_det += 2 * math.log(factor)
    posterior = from_whitened(std * step, std, rows, log_det)
    floor = SHORTEST_AXIS**2 * posterior.variances.max()
    posterior = replace(posterior, variances=np.maximum(posterior.variances, floor))
    way = posterior.rotation.T @ (std * step) / np.sqrt(posterior.variances)
    way *= float(np.linalg.norm(step)) / max(float(np.linalg.norm(way)), 1e-300)
    return posterior, way


def turned(axes: FloatArray | None, v: FloatArray) -> FloatArray:
    """A vector (n,) along these axes; None for those that it has."""
    return v if axes is None else axes.T @ v


def first_memory(n: int, full: bool) -> Memory:
    """What is remembered before the first update: nothing matters more than anything else."""
    W = (np.eye(n) if full else np.ones(n)) / n
    return Memory(W, np.zeros((2, 6)), np.ones(2), np.zeros(n), np.ones(1))


def carried(amplitudes: FloatArray, before: float, now: float) -> FloatArray | None:
    """Amplitudes (6,) in units of the spread as it is now; None if there are none yet."""
    if not amplitudes.any():
        return None
    # whatever the change of scale, the fit brings them back in range
    with np.errstate(over="ignore"):
        ratio: float = min(max(before / max(now, 1e-300), 1e-70), 1e70)
    return amplitudes * ratio**2
