"""One update of the belief by the surrogate."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, from_whitened, unmixed
from klimb.surrogate.model import FEWEST_KEPT, LARGEST_SKILL, fit_surrogate, unknowns
from klimb.surrogate.noise import largest_share, no_noise, noise_share, noise_variance
from klimb.surrogate.relevance import PATIENCE, blend, prior_shape, reweighted, total
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
# By this share the belief closes in more slowly where nothing is explained and there is no noise.
HESITATION = 0.5
# And by this share of the pace that is left where good returns are rare.
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
    weights : (n,)
        r, of the parameters in the order of the user.
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
    weights: FloatArray
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
    """Share of noise in what is unexplained; 0 on a plateau, where nothing is explained."""
    rough: float
    """Share of held-out returns that is neither explained nor noise where they were drawn; 0 on a plateau."""
    walks: bool
    """Whether the mean went towards the better ones, as good returns are rare and nothing is explained."""
    eta: float
    skill: float


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
    n, std, plateau = prior.n_parameters, np.sqrt(prior.variances), on_plateau(returns)
    z = (x if rotation is None else x @ rotation) / std
    length, N = np.einsum("ij,ij->i", z, z), returns.size
    memory = first_memory(n, full) if memory is None else memory
    W, r = memory.relevance, memory.weights
    V, rest = prior_shape(W, r, std, rotation), np.zeros(1)
    amplitudes, spread = memory.amplitudes.copy(), memory.spread.copy()
    bold, away = False, np.empty(0) if away is None else away
    for view, units in ((VALUES, scaled), (RANKS, ranked)):
        # A quadratic of the values is worth more where there is one, as it says how far to go. But returns
        # that jump, as where a puck goes into the goal or not, are a few large values among many small ones:
        # all that is fitted are those few, and what looks like curvature is none.
        y, size = units(returns, length)
        measured = 0.0 if bold else noise_variance(noise, size)
        t = carried(amplitudes[view], spread[view], size)
        fit = fit_surrogate(z, y, twins, V, t, std, rotation, measured, exploration, x)
        amplitudes[view], spread[view] = fit.amplitudes, size
        if view == VALUES:
            rest[0] = fit.unexplained
            taken = noise_share(measured, fit.unexplained)  # by noise; below: of no more than all
            # where episodes were drawn: the larger of both, as the noise may grow away from the mean
            there = max(measured, noise_variance(away, size))
            taken_there = noise_share(there, fit.unexplained)
            certain = no_noise(noise, noise_share(there, min(1.0, fit.unexplained)))
            bold = rare and not plateau and fit.skill <= EXPLAINED
        # ranks of noise are no better than values, and a plateau has next to none
        if plateau or fit.skill > EXPLAINED or (noise.any() and not bold):
            break
    # no slope is known then, and old episodes say little of where the mean is now; in noise they are averaged
    walks = bold and (look or not noise.any())
    unit = math.sqrt(fit.variance)
    g, H, Q = fit.gradient / unit, fit.hessian / unit, fit.skill
    h, axes = np.linalg.eigh(H) if full else (H, None)
    far = pace(n_new, n)
    # squared distances of the new samples along the axes, on average
    reach = np.ones(n) if exploration is None else exploration
    reach = reach if axes is None else np.square(axes).T @ reach
    # and by how much that is more than the belief's, as far as the episodes can tell a quadratic
    told_all = min(1.0, N / unknowns(n, full))
    wide = 1.0 if exploration is None else float(exploration.mean()) ** told_all
    many = min(1.0, N / max(FEWEST_KEPT, 2 * n))
    share = wide_look = rough = 0.0
    if plateau:
        d, scale = gather(z, returns, n_new)
        climbed = d if axes is None else axes.T @ d
    else:
        # each direction has its share of the held-out error: where the slope is no more, a step is about 1
        doubt = math.sqrt((1 - Q) / n)
        share = 0.0 if bold else taken
        # held-out returns suffer from what episodes do not tell, too, the more the further away they are, and
        # the likelihood takes ruggedness for curvature: near ones and it have a say where the episodes can
        # tell a quadratic, and else near and far ones alike
        near = noise_share(measured, fit.nearby)
        held_out = (near ** (1 + told_all) * share ** (1 - told_all)) ** 0.5
        wide_look = held_out ** (1 - told_all / 2) * fit.hidden ** (told_all / 2)
        rough = (1 - Q) * (1 - taken_there)
        # without skill, by the share of new episodes: noise must not stop the search for good
        bound = max(odds(fit, N, wide), n_new / max(FEWEST_KEPT, N))
        # and by their number as far as what is unexplained is no noise: they are too few
        few = max(NATS_PER_EPISODE * n_new, NATS_PER_PARAMETER * (n / N - 1))
        if bold and not walks:  # further out, whatever the landscape is like there
            few, doubt = max(few, LARGEST_STEP * far), 0.0
        bound = max(bound, certain**2 * few)
        # what noise hides is no reason for doubt: the filter below goes as far as it tells
        bound, doubt = max(bound, NATS_IN_NOISE * share), doubt * (1 - share)
        slope = g if axes is None else axes.T @ g
        climbed = climb(slope, h - doubt, bound)
        hidden = share * fit.unexplained / fit.variance
        climbed = filtered(
            climbed, slope, h, hidden, n_new * reach, n_new / N, doubtful=largest_share(noise, share)
        )
        if walks:
            better = towards_better(z, returns, n_new)
            climbed = better if axes is None else axes.T @ better
        scale = widening(fit.amplitudes, V)
        if Q == LARGEST_SKILL and float(climbed @ climbed) > 1.98 * bound:
            scale = max(scale, 0.0)  # all is explained, and the way is longer than an update may go
        if scale > 0:  # few episodes are no reason to try anything bolder than what was asked for
            scale *= min(1.0, N / FEWEST_KEPT)
            if noise.any():  # noise looks like a slope now and then: believe what held-out returns confirm,
                scale *= Q * min(1.0, float(climbed @ climbed))  # and what leads out of the belief
        else:  # what many episodes leave unexplained, and is no noise, is rugged: there are valleys to choose
            scale *= 1 - HESITATION * (1 - Q) * certain * many
            if bold:
                scale *= BOLD * certain
    # the target: as much of the curvature as the skill supports, positive definite by construction
    explained = float(g @ g + np.square(h).sum() / 2)
    phi = min(1.0, Q / explained) if explained > 0 else 0.0
    # at first a few steep directions are all that is seen: the others wait for their turn
    part = closing(h, Q) if scale < 0 and not plateau and N < FEWEST_KEPT else 1.0
    p = (1 - phi * h / max(1.0, 2 * float(h.max()))) * np.exp(-2 * far * scale * part)
    if noise.any() and not plateau:
        # where all that is unexplained is noise, the belief is what the episodes tell of the optimum
        told = n_new * reach * np.square(h) * fit.variance / fit.unexplained
        told = np.minimum(told, math.expm1(2 * max(LARGEST_CHANGE, change_of_step(n))))
        # what wide samples leave unexplained is less within the belief
        inside = share / (share + (1 - share) / wide**2)
        sure = largest_share(noise, inside)
        wider = math.exp(-2 * far * max(scale, 0.0) * told_all * sure)
        p = p ** (1 - sure) * (1 + told) ** sure * wider
    nats = far**2 * LARGEST_STEP / (1 - Q)
    if walks:
        nats += float(climbed @ climbed) / 2
    d, p, eta = bounded_step(climbed, p, nats)

    rate = n_new / (n_new + 2 * N)  # an average over about two lengths of the buffer
    r = reweighted(r, fit.found, fit.wanted, PATIENCE * rate)
    if axes is not None:
        seen = np.outer(g, g) + H @ H.T  # symmetric, and said so: BLAS takes half the time
        W = blend(W, seen, rate)
        rows, step, log_det = axes.T / np.sqrt(p)[:, None], axes @ d, -float(np.log(p).sum())
        if many == 1 and not plateau:
            ahead, factor = keeps_going(memory.way, step, far)
            along = rows @ ahead
            more = (factor**2 - 1) * float(along @ along) / 2 - math.log(factor)  # nats that it takes
            if factor > 1 and divergence(d, p) + more <= nats:
                rows += np.outer(along, (factor - 1) * ahead)
                log_det += 2 * math.log(factor)
        posterior = from_whitened(std * step, std, rows, log_det)
        floor = SHORTEST_AXIS**2 * posterior.variances.max()
        posterior = replace(posterior, variances=np.maximum(posterior.variances, floor))
        T = posterior.rotation * np.sqrt(posterior.variances) / std[:, None]  # z = d + T z'
        W = T.T @ W @ T
        way = posterior.rotation.T @ (std * step) / np.sqrt(posterior.variances)
        way *= float(np.linalg.norm(step)) / max(float(np.linalg.norm(way)), 1e-300)
    else:
        seen = np.square(g) + np.square(H)
        W = blend(W, seen, rate) / p
        posterior = unmixed(std * d, np.square(std) / p)
        way = np.zeros(n)
    memory = Memory(W / total(W), r, amplitudes, spread, way, rest)
    return Learned(posterior, memory, seen, wide_look, rough, walks, eta, Q)


def first_memory(n: int, full: bool) -> Memory:
    """What is remembered before the first update: nothing matters more than anything else."""
    W = (np.eye(n) if full else np.ones(n)) / n
    return Memory(W, np.ones(n), np.zeros((2, 6)), np.ones(2), np.zeros(n), np.ones(1))


def carried(amplitudes: FloatArray, before: float, now: float) -> FloatArray | None:
    """Amplitudes (6,) in units of the spread as it is now; None if there are none yet."""
    if not amplitudes.any():
        return None
    # whatever the change of scale, the fit brings them back in range
    with np.errstate(over="ignore"):
        ratio: float = min(max(before / max(now, 1e-300), 1e-70), 1e70)
    return amplitudes * ratio**2
