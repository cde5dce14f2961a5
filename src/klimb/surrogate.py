"""The relevance surrogate: a quadratic model that learns which directions matter, and how far to trust it.

A Gaussian process whose mean is a quadratic explains the returns of the latest episodes. Its prior says that
few parameters and few directions matter, and which ones is learned on the way: their relevance shapes the
prior of the gradient and of the curvature. Nothing is tuned by hand: the amplitudes of signal and noise are
those of the greatest likelihood, and how well held-out episodes are predicted decides how far the belief may
move.

Symbols, all in coordinates z whitened by the belief, which is N(0, I) there:

    z (N, n), J (N,)    episodes and their returns;  model  J ~ b + g.z + z'Hz/2
    W (n, n)            relevance of directions, trace 1, (n,) if diagonal
    r (n,)              relevance of the parameters themselves, 1 on average
    V (n, n)            both of them, trace 1: it shapes the prior of g and H
    k = z'V z'          kernel  t1 k + t2 k^2 + t3 q q' + t6 c.c' + constant,  q = (|z|^2 - n) / sqrt(2n),
    c (n,)              c_i = v_i x_i^2 with the parameters x around the mean and their share v of V
    y                   returns, or the normal scores of their ranks, in units of their spread; twins m + s,
                        m - s as their odd and even part
    t (6,)              amplitudes: linear, quadratic, isotropic, remainder, further remainder of the even
                        part, curvature along the parameters
    Q                   skill: the share of the variance of held-out returns that is explained, in [0, 1)
    p, d                precision and mean of the new belief in the eigenbasis of H

docs/algorithms/auto.md derives the update and gives the reason of every constant.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import blas, lapack
from scipy.special import ndtri

from klimb._validation import FloatArray, IntArray
from klimb.fitting import largest_step
from klimb.gaussian import Gaussian, from_whitened, on_diagonal, unmixed
from klimb.weighting import rank_utilities

# Episodes that are kept: 2 n, enough for a gradient twice over, but so many at least and at most. A quadratic
# of 20 parameters has 231 unknowns; the time that an update takes grows with the third power.
FEWEST_KEPT, MOST_KEPT = 200, 1000
# In noise so many at least, if they tell all unknowns of a quadratic.
FEWEST_IN_NOISE = 400
# Amplitudes start as shares of the variance: of the parts of the quadratic and of the remainder.
FIRST_SHARES = (0.3, 0.1, 0.1, 0.3, 0.3, 0.1)
# Which of them are those of the kernel, as its parts lie in memory; the last for a full covariance alone.
ALONG = 5
SIGNAL = (0, 1, 2, ALONG)
# A share below this is as good as none; above, the returns at hand are all but equal.
SMALLEST_SHARE, LARGEST_SHARE = 1e-12, 1e4
# A variance of noise below this share of all is counted as this: what it is divided by stays in range.
SMALLEST_NOISE = 1e-200
# Steps towards the greatest likelihood per update. It moves on slowly, and so do they.
STEPS = 2
# Share of the prior that goes to all directions alike, so that none is ever given up, and of the relevance of
# directions, which takes noise for relevance until there are many episodes per parameter.
EVERYWHERE, ALIKE = 0.05, 0.8
# The relevance of a parameter lies between these; 1 is the average. An update changes it by a factor of 2 at
# most, and goes a tenth as far as that of directions: what is taken for irrelevant is hardly looked at again.
LEAST_RELEVANT, MOST_RELEVANT = 1e-4, 1e4
LARGEST_FACTOR, PATIENCE = 2.0, 0.1
# Triangles up to this size are inverted as they are, larger ones by halves.
SMALL_TRIANGLE = 64
# The variance of the constant: large against 1, the variance of what it is added to.
CONSTANT = 100.0
# KL(new || old) in nats that an update without any skill may take, as much as :func:`widening` asks for, and
# the number of new episodes for which it may.
LARGEST_STEP = 4.0
EPISODES_PER_STEP = 8
# Nats by which an episode may move the mean where there is no noise: a pair of them tells one direction, in
# which a step of one standard deviation is taken.
NATS_PER_EPISODE = 0.25
# Nats for every parameter per kept episode: B of them, B/2 pairs, tell sqrt(B/2n) of the slope of n
# parameters, so that a step of 4 n/B nats goes two standard deviations along the true one. So it is with far
# more parameters than episodes; with as many, the skill tells how far to go.
NATS_PER_PARAMETER = 4.0
# Nats that the mean may go where all that is unexplained is noise.
NATS_IN_NOISE = 0.5
# However many episodes are new, no more than this is added to the log of all standard deviations at once.
LARGEST_CHANGE = 0.5
# Skill is believed up to here; a perfect fit of few episodes is none.
LARGEST_SKILL = 0.999
# A standard deviation never falls below this share of the largest: rounding would eat it.
SHORTEST_AXIS = 1e-5
# Where the mean goes the same way in two updates in a row, the belief is at least this share of either step
# wide along it; but its variance there no more than doubles.
SHARE_OF_WAY, LARGEST_WIDENING = 0.5, math.sqrt(2)
# By this share the belief closes in more slowly where nothing is explained and there is no noise.
HESITATION = 0.5
# And by this share of the pace that is left where good returns are rare.
BOLD = 0.3
# On a plateau the belief closes in by this share of what it may even if that has not paid so far.
CLOSING_ANYHOW = 0.2
# Returns of near episodes that are further from the quartiles than so many interquartile ranges count as if
# they were there.
OUTLYING = 10.0
# Episodes further away than so many times the usual squared distance are moved here: they count for nothing.
FAR = 1e4
# With a skill of no more than this, returns are hardly explained. Then their ranks are followed instead of
# their values.
EXPLAINED = 0.1
VALUES, RANKS = 0, 1
# Good returns are rare where their skewness is above 0 by so many standard errors.
SKEWED = 2.0
# Marks of two episodes next to each other: of mirrored parameters, of the mean, and of another sample twice.
MIRRORING, TWICE, AWAY = (1, -1), (2, 3), (4, 5)
# Samples m + s and m - s count as twins if they mirror each other up to this share of |s|^2.
MIRRORED = 1e-6


class Twins(NamedTuple):
    """Which rows mirror each other: `first` and `second` (P,), and those that are `alone` (S,)."""

    first: IntArray
    second: IntArray
    alone: IntArray

    def parts(self, rows: FloatArray) -> FloatArray:
        """Odd parts of the twins, their even parts, those alone: an orthogonal change of (N,)."""
        a, b = rows[self.first], rows[self.second]
        return np.concatenate([(a - b) * math.sqrt(0.5), (a + b) * math.sqrt(0.5), rows[self.alone]])


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


class Fit(NamedTuple):
    """The surrogate: gradient g (n,), curvature H, how well it predicts, and the amplitudes t (6,).

    `variance` is that of a return under the belief, in the same units, of which `unexplained` is not the
    surrogate's, and `nearby` what is unexplained of episodes that are about as far away as new ones.
    `hidden` is the share of the measured noise in what the likelihood takes for a remainder.
    `found` and `wanted` (n,) are what the slope of each parameter explains, and what it ought to if V is
    right: where the episodes tell the slope they are about 1, and 0 where they do not.
    """

    gradient: FloatArray
    hessian: FloatArray
    found: FloatArray
    wanted: FloatArray
    amplitudes: FloatArray
    skill: float
    variance: float
    unexplained: float
    nearby: float
    hidden: float


def find_twins(z: FloatArray) -> IntArray:
    """An order of the whitened samples (N, n) and their marks, (2, N): twins next to each other.

    They are marked as :data:`MIRRORING`; of those that were drawn twice the nearest, which is the mean, as
    :data:`TWICE` and the others as :data:`AWAY`. All of these have the same length, so that they are
    neighbours when sorted by it. The others have 0 and keep their order, behind.
    """
    length = np.einsum("ij,ij->i", z, z)
    order = np.argsort(length, kind="stable")
    least = MIRRORED * length[order[1:]]
    mirrored = np.square(z[order[:-1]] + z[order[1:]]).sum(1) <= least
    repeated = np.square(z[order[:-1]] - z[order[1:]]).sum(1) <= least
    paired: list[int] = []
    twin: list[int] = []
    place = 0
    while place < mirrored.size:
        if mirrored[place] or repeated[place]:
            paired += [int(order[place]), int(order[place + 1])]
            if repeated[place]:  # the mean itself mirrors itself as well
                twin += AWAY if TWICE[0] in twin else TWICE
            else:
                twin += MIRRORING
            place += 1
        place += 1
    alone = sorted(set(range(len(z))).difference(paired))
    return np.array([[*paired, *alone], [*twin, *[0] * len(alone)]], dtype=np.int64)


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


def pairs(twin: IntArray, marks: tuple[int, int]) -> IntArray:
    """Where the first is of all pairs with these marks that are still both there."""
    return np.flatnonzero((twin[:-1] == marks[0]) & (twin[1:] == marks[1]))


def matched(twin: IntArray) -> Twins:
    """The twins that are still both there, and the others."""
    first = pairs(twin, MIRRORING)
    alone = np.ones(twin.size, dtype=np.bool_)
    alone[first] = alone[first + 1] = False
    return Twins(first, first + 1, np.flatnonzero(alone))


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


def remoteness(length: FloatArray) -> FloatArray:
    """Squared lengths (N,) in units of what is usual: 1 for the nearest quarter, at most :data:`FAR`."""
    usual = max(float(np.sort(length)[length.size // 4]), 1e-300)
    return length.clip(usual, FAR * usual) / usual


def nearness(remote: FloatArray) -> FloatArray:
    """Weights (N,) of samples by their :func:`remoteness`, 1 for the nearest quarter: far ones hardly count.

    They fall with the sixth power of the distance, as what a remainder of the third order leaves unknown
    grows, down to where an episode counts for nothing.
    """
    return remote**-3.0


def scaled(returns: FloatArray, length: FloatArray) -> tuple[FloatArray, float]:
    """Returns around 0 in units of their spread, and that spread; outliers are brought back in.

    Both are those of the near episodes, by the squared lengths (N,) of the samples: where the belief has
    closed in, the returns of earlier episodes differ by far more, and in their units nothing could be seen of
    what is left. What is an outlier grows with them, as a bowl does.
    """
    largest = float(np.abs(returns).max())
    remote = remoteness(length)
    J = returns / largest  # keeps the squares of huge and tiny returns in range
    low, high = np.sort(J)[[J.size // 4, (3 * J.size) // 4]]
    if high > low:
        reach = OUTLYING * (high - low) * remote
        J = J.clip(low - reach, high + reach)
    near = nearness(remote)
    near /= near.sum()
    J = J - near @ J
    size = float(np.abs(J).max())
    rms = size * math.sqrt(float(near @ np.square(J / size)))
    return J / rms, rms * largest


def ranked(returns: FloatArray, length: FloatArray) -> tuple[FloatArray, float]:
    """Normal scores of the ranks of the returns, in units of the spread of near ones, as :func:`scaled`."""
    _, place, counts = np.unique(returns, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts / 2  # equals share their places
    scores: FloatArray = ndtri(below / returns.size)[place]
    near = nearness(remoteness(length))
    near /= near.sum()
    scores = scores - near @ scores
    spread = max(math.sqrt(float(near @ np.square(scores))), 1e-100)
    return scores / spread, spread


def total(W: FloatArray) -> float:
    """Trace of W, a matrix or its diagonal."""
    return float(np.trace(W) if W.ndim == 2 else W.sum())


def blend(W: FloatArray, seen: FloatArray, rate: float) -> FloatArray:
    """Move W the share `rate` of its way to what was seen, in units of its trace."""
    size = total(seen)
    return W if size <= 0 else (1 - rate) * W + (rate / size) * seen


def prior_shape(W: FloatArray, r: FloatArray, std: FloatArray, rotation: FloatArray | None) -> FloatArray:
    """V: the relevance of directions, on either side that of parameters, and something for all; of trace 1.

    In parameters x = R diag(s) z the prior of the slope is diag(r)^(1/2) W diag(r)^(1/2), where W stands for
    the relevance of directions with the share :data:`ALIKE` for all of them.
    """
    n = len(W)
    V: FloatArray = (1 - ALIKE) * W
    if W.ndim == 1:
        V = r * (V + ALIKE / n)
        V *= (1 - EVERYWHERE) / V.sum()
        V += EVERYWHERE / n
        return V
    on_diagonal(V)[:] += ALIKE / n
    root = np.sqrt(r)
    if rotation is None:
        V *= np.outer(root, root)
    else:
        turned = (rotation.T * root) @ rotation * (std[:, None] / std)
        V = turned @ V @ turned.T
    V *= (1 - EVERYWHERE) / np.trace(V)
    on_diagonal(V)[:] += EVERYWHERE / n
    return V


def reweighted(r: FloatArray, found: FloatArray, wanted: FloatArray, rate: float) -> FloatArray:
    """Move the relevance of parameters towards what their slopes explain; 1 on average.

    With the rate 1 this is about a step of expectation maximisation: r becomes the mean square of the slope
    under the posterior. Where the episodes do not tell a slope, found and wanted are 0 and r stays.
    """
    factor = 1 / (1 + rate * wanted) + rate * found
    r = r * factor.clip(1 / LARGEST_FACTOR, LARGEST_FACTOR)
    weights: FloatArray = (r / r.mean()).clip(LEAST_RELEVANT, MOST_RELEVANT)
    return weights


def fit_surrogate(
    z: FloatArray,
    y: FloatArray,
    twins: Twins,
    V: FloatArray,
    t: FloatArray | None,
    std: FloatArray,
    rotation: FloatArray | None = None,
    measured: float = 0.0,
    exploration: FloatArray | None = None,
    parameters: FloatArray | None = None,
) -> Fit:
    """Fit the quadratic to whitened samples (N, n) and standardised returns y (N,).

    Parameters are x = R diag(s) z, with the standard deviations s (n,) and the rotation R (n, n) or None;
    `measured` is the variance of the noise of y, `exploration` (n,) by how much new samples vary more than
    the belief, `parameters` are the x (N, n) if they are known already.
    """
    (N, n), full = z.shape, V.ndim == 2
    zV = z @ V if full else z * V
    distance = np.einsum("ij,ij->i", z, zV)
    usual = max(1.0, float(np.sort(distance)[N // 4]))
    far = distance > FAR * usual
    if far.any():
        shrink = FAR * usual / distance[far]
        z, zV, y, parameters = z.copy(), zV.copy(), y.copy(), None
        z[far] *= np.sqrt(shrink)[:, None]
        zV[far] *= np.sqrt(shrink)[:, None]
        y[far] *= shrink  # as a quadratic would
        distance[far] = FAR * usual
    length = np.einsum("ij,ij->i", z, z)
    q = (length - n) / math.sqrt(2 * n)
    # parts of the kernel, one after the other: a single product sums them up, or takes all their traces
    kernels = np.empty((4 if full else 3, N, N))
    linear, quadratic, isotropic = kernels[:3]
    np.matmul(zV, z.T, out=linear)
    np.multiply(q[:, None], q, out=isotropic)
    if full:
        if rotation is None:
            frame, x, own = None, z, np.diag(V)
        else:  # parameters in units of their standard deviations
            frame = rotation * std
            deviation = np.sqrt(np.square(frame).sum(1))
            x = (z @ frame.T if parameters is None else parameters) / deviation
            frame, back = frame / deviation[:, None], deviation[:, None] * (rotation / std)
            own = np.einsum("ij,ij->i", back @ V, back)
        bent = np.square(x) * own
        np.square(linear, out=quadratic)
        np.matmul(bent, bent.T, out=kernels[3])
    else:
        bent = np.square(z) * V
        np.matmul(bent, bent.T, out=quadratic)  # all curvature is along parameters
    # what no quadratic explains, a remainder of the third order, grows with the sixth power of the distance;
    # as long as there are few episodes, those far away are worth a little more than that
    noise = np.maximum(1.0, distance / usual) ** (2.5 + 0.5 * min(1.0, N / FEWEST_KEPT))
    first, second, alone = twins
    noise[first] = noise[second] = (noise[first] + noise[second]) / 2
    of_both, of_one = noise[first] / 2, noise[alone] / 2

    flat, diagonals = kernels.reshape(len(kernels), N * N), np.diagonal(kernels, axis1=1, axis2=2)
    signal = np.array(SIGNAL[: len(kernels)])
    sizes = np.ones(6)
    near = nearness(remoteness(length))
    sizes[signal] = np.maximum(diagonals @ near / near.sum(), 1e-300)
    t = np.array(FIRST_SHARES) / sizes if t is None else t
    K, found, wanted = np.empty((N, N)), np.zeros(6), np.zeros(6)
    for _ in range(STEPS):
        t = t.clip(SMALLEST_SHARE / sizes, LARGEST_SHARE / sizes)
        if not full:
            t[ALONG] = 0.0
        if measured > 0:  # a slope that noise hides is there: the optimum is as far away as the belief says
            t[0] = min(max(t[0], hidden_share(t, measured) * bend(t, V)), LARGEST_SHARE / sizes[0])
        used = t
        np.matmul(t[signal], flat, out=K.reshape(N * N))
        K += CONSTANT
        scatter = measured + (t[3] + t[4] / 2) * noise
        K[first, second] += t[4] * of_both  # noise of the even part: shared by twins
        K[second, first] += t[4] * of_both
        alpha, inverse, scatter = solved(K, scatter, y)
        variance, shared = np.diag(inverse), inverse[first, second]
        # each amplitude grows by the root of what it explains over what it should: the likelihood never falls
        found[signal] = kernels @ alpha @ alpha
        found[3] = np.square(alpha) @ noise
        found[4] = np.square(alpha[first] + alpha[second]) @ of_both + np.square(alpha[alone]) @ of_one
        wanted[signal] = 2 * (flat @ inverse.reshape(N * N)) - diagonals @ variance
        wanted[3] = variance @ noise
        wanted[4] = (variance[first] + variance[second] + 2 * shared) @ of_both + variance[alone] @ of_one
        with np.errstate(over="ignore"):
            t = t * np.sqrt((found / np.maximum(wanted, 1e-300)).clip(1e-4, 1e4))

    # residuals of held-out returns in closed form; twins are held out together
    left_out = alpha / variance
    product = variance[first] * variance[second]
    determinant = np.maximum(product - np.square(shared), 1e-15 * product)
    left_out[first] = (variance[second] * alpha[first] - shared * alpha[second]) / determinant
    left_out[second] = (variance[first] * alpha[second] - shared * alpha[first]) / determinant
    # odd and even parts of twins have noise of their own
    odd_noise = measured + used[3] * noise[first]
    weight = 1 / np.concatenate([odd_noise, odd_noise + 2 * used[4] * of_both, scatter[alone]])
    rest = twins.parts(left_out)
    skill = held_out_skill(twins.parts(y), rest, twins.parts(np.ones(N)), weight)
    unexplained = nearby = left_over(rest, weight, first.size)
    if measured > 0:  # further away few episodes tell what to expect, and that is no noise
        if exploration is not None:
            near = nearness(remoteness(np.square(z) @ (1 / exploration)))
        of_pair = (near[first] + near[second]) / 2
        nearby = left_over(rest, weight * np.concatenate([of_pair, of_pair, near[alone]]), first.size)

    tilt = 2 * used[2] * float(alpha @ q) / math.sqrt(2 * n)
    # found and wanted: derivatives of the likelihood by the relevance of parameters, in units of the prior
    if full:
        g = used[0] * (alpha @ zV)
        H = weighted_square(zV, 2 * used[1] * alpha)
        on_diagonal(H)[:] += tilt
        bends = 2 * used[ALONG] * own * (alpha @ bent)  # of the parameters
        H += np.diag(bends) if frame is None else weighted_square(frame, bends)
        slopes = np.multiply(linear, 2 * used[1], out=quadratic)
        slopes += used[0]
        found, wanted = (own * part for part in explained_by(x, alpha, inverse, slopes))
    else:
        g = used[0] * V * (alpha @ z)
        H = 2 * used[1] * V * (alpha @ bent) + tilt
        by_slope, by_curvature = (explained_by(part, alpha, inverse, None) for part in (z, bent))
        found, wanted = (
            used[0] * V * a + 2 * used[1] * b for a, b in zip(by_slope, by_curvature, strict=True)
        )
    variance_of_returns = float(g @ g + np.square(H).sum() / 2) + unexplained
    hidden = hidden_share(used, measured)
    return Fit(g, H, found, wanted, t, skill, variance_of_returns, unexplained, nearby, hidden)


def left_over(rest: FloatArray, weight: FloatArray, n_pairs: int) -> float:
    """Mean square of residuals (N,), of which `n_pairs` are odd parts: of these or of the others, if more."""
    odd, even = slice(n_pairs), slice(n_pairs, None)
    first, second = (np.square(rest[part]) @ weight[part] for part in (odd, even))
    return max(
        float(first / weight[odd].sum()) if n_pairs else 0.0, float(second / weight[even].sum()), 1e-300
    )


def hidden_share(amplitudes: FloatArray, noise: float) -> float:
    """Share of the measured noise, a variance, in all that no quadratic explains, by the likelihood."""
    return noise / (noise + float(amplitudes[3] + amplitudes[4] / 2)) if noise > 0 else 0.0


def explained_by(
    x: FloatArray, alpha: FloatArray, inverse: FloatArray, weights: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """alpha' (C * xx') alpha and tr(K^-1 (C * xx')) for each column of x (N, n), C being `weights` or all 1.

    `inverse` has the upper half of K^-1.
    """
    if weights is None:
        return np.square(alpha @ x), quadratic_forms(x, inverse)
    return quadratic_forms(x * alpha[:, None], weights), quadratic_forms(x, inverse * weights)


def quadratic_forms(x: FloatArray, A: FloatArray) -> FloatArray:
    """x'Ax for each column of x (N, n), where A (N, N) is symmetric; its upper half is enough."""
    half = blas.dtrmm(1.0, A.T, x.T, side=True, lower=True)  # (n, N): transposed, as BLAS wants all of it
    forms: FloatArray = 2 * np.einsum("ij,ji->j", x, half) - np.diag(A) @ np.square(x)
    return forms


def weighted_square(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """rows' diag(weights) rows of (k, n), by products that BLAS knows as symmetric, one for either sign."""
    rows = rows * np.sqrt(np.abs(weights))[:, None]
    more, less = rows[weights > 0], rows[weights < 0]
    square: FloatArray = more.T @ more - less.T @ less
    return square


def solved(K: FloatArray, scatter: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(K + diag)^-1 y, the upper half of that inverse, and the diagonal: a larger one if rounding asks."""
    diagonal = on_diagonal(K)
    own = diagonal.copy()
    while True:
        diagonal[:] = own + scatter
        factor, info = lapack.dpotrf(K.T, lower=True)  # K is symmetric: its transpose lies as LAPACK wants it
        if info == 0:
            break
        scatter = 10 * scatter
    alpha, _ = lapack.dpotrs(factor, y, lower=True)
    invert_triangle(factor)
    inverse, _ = lapack.dlauum(factor, lower=True, overwrite_c=True)
    return alpha, inverse.T, scatter


def invert_triangle(L: FloatArray) -> None:
    """Put the inverse of a lower triangle (N, N) in its place, by halves: faster than LAPACK."""
    if len(L) <= SMALL_TRIANGLE:
        L[:], _ = lapack.dtrtri(L, lower=True)
        return
    half = len(L) // 2
    first, mixed, second = L[:half, :half], L[half:, :half], L[half:, half:]
    invert_triangle(first)
    invert_triangle(second)
    mixed[:] = blas.dtrmm(-1.0, second, blas.dtrmm(1.0, first, mixed, side=True, lower=True), lower=True)


def held_out_skill(y: FloatArray, left_out: FloatArray, constant: FloatArray, weight: FloatArray) -> float:
    """Share of the weighted variance that held-out predictions explain, less half its standard error."""
    mean = float((weight * constant) @ y / ((weight * constant) @ constant))
    before = weight * np.square(y - mean * constant)
    after = weight * np.square(left_out)
    size = float(before.sum())
    if size <= 0:
        return 0.0
    share = 1 - float(after.sum()) / size
    error = float(np.linalg.norm(before - after - share * before)) / size  # of a ratio; these sum up to 0
    return min(max(share - error / 2, 0.0), LARGEST_SKILL)


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
    doubtful: float,
) -> FloatArray:
    """As much of the way d (n,) to the surrogate's optimum as new episodes justify.

    The belief has learned from the other kept episodes before, and to follow these again would be to follow
    their noise. Seen from the belief, new returns with noise of the variance `noise` tell where the optimum
    is with the precision M = (gg' + HH) `told_by` / noise, where `told_by` (n,) are sums of their squared
    distances. A filter that knows I before goes (I + M)^-1 M d: here that of the new episodes at `least`, and
    all of it without noise. By the share `doubtful` the slope counts as if its parts along the axes of H had
    been told one by one, since noise takes all of them for one.
    """
    if noise <= 0:
        return d
    with np.errstate(over="ignore"):
        told = told_by / max(noise, SMALLEST_NOISE)
        own = 1 + told * (np.square(h) + doubtful * np.square(g))
        u = np.sqrt((1 - doubtful) * told) * g
        v = u / own
        rest = d / own  # (I + M)^-1 d, by Sherman and Morrison
        rest -= v * (float(u @ rest) / (1 + float(u @ v)))
    return d - (1 - least) * rest


def unknowns(n: int, full: bool) -> int:
    """How many numbers a quadratic of n parameters has; without mixed terms if not `full`."""
    return (n + 1) * (n + 2) // 2 if full else 2 * n + 1


def pace(n_new: int, n: int) -> float:
    """How far an update may go, in proportion to its new episodes: 1 for :data:`EPISODES_PER_STEP`."""
    return min(n_new / EPISODES_PER_STEP, max(1.0, LARGEST_CHANGE / change_of_step(n)))


def change_of_step(n: int) -> float:
    """What a step of pace 1 adds at most to the log of all standard deviations: some 4 nats in all."""
    return 2 / math.sqrt(n)


def on_plateau(returns: FloatArray) -> bool:
    """Whether half of the returns or more are the worst: a landscape without slope but for a few spots."""
    return bool(2 * np.count_nonzero(returns == returns.min()) >= returns.size)


def rarely_good(returns: FloatArray) -> bool:
    """Whether returns (N,) are skewed to the good side, by more than chance: a few far above the others.

    Those of a bowl are skewed to the bad side, of which there is more than of the good one. A puck that goes
    into the goal now and then, or legs that take a step, are known by this before anything is explained.
    """
    J = returns / max(float(np.abs(returns).max()), 1e-300)
    away = J - J.mean()
    spread = math.sqrt(float(np.square(away).mean()))
    return spread > 0 and float(np.mean((away / spread) ** 3)) > SKEWED * math.sqrt(6 / J.size)


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


def widening(amplitudes: FloatArray, V: FloatArray) -> float:
    """Log factor of all standard deviations: up where the slope counts for more than the curvature.

    At most :func:`change_of_step`, up or down.
    """
    slope, curvature = amplitudes[0], bend(amplitudes, V)
    return change_of_step(len(V)) * float((slope - curvature) / (slope + curvature))


def bend(amplitudes: FloatArray, V: FloatArray) -> float:
    """What the curvature counts for, as the slope does by its amplitude: twice its variance, about."""
    _, quadratic, isotropic, _, even, along = amplitudes
    # t2 is the variance of all curvature, for which noise is taken easily, t2 |V|^2 that of the mean
    # curvature, which is blind to a rough landscape: this lies between them, and so for t6
    size = math.sqrt(float(np.square(V).sum()))
    return float(2 * ((2 * quadratic + along) * size + isotropic + even))


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
