"""One search step: ask for samples, tell their returns.

Guided dimensionality reduction and prioritized exploration are settings here, for any update rule. Both work
in the local coordinates of the belief, where its covariance is diagonal:

    reduce     update only the n_effective coordinates that matter most (GDR)
    damping    sample the others with their variance times this factor (PE's lambda)
    soft       weigh every coordinate by its relative effectiveness instead (PRO)

Earlier episodes can be learned from again:

    reuse      how many of them join every update

A search by the surrogate that has come to its end begins anew, and what it found is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray, IntArray, numbers, one_of, share, whole
from klimb.effectiveness import Effectiveness, resolve
from klimb.gaussian import Gaussian, diagonal, from_whitened, unmixed
from klimb.surrogate import (
    AWAY,
    EXPLAINED,
    FEWEST_IN_NOISE,
    FEWEST_KEPT,
    MOST_KEPT,
    TWICE,
    VALUES,
    Learned,
    Memory,
    find_twins,
    learn,
    matched,
    measured_noise,
    noiseless,
    pairs,
    rarely_good,
    unknowns,
)
from klimb.updates import CrossEntropy, ModelBased, RelevanceSurrogate, Update, UpdateInfo

# A full covariance beyond this number of parameters would take more than 12 GB.
LARGEST_FULL = 40_000

# Streams start the golden ratio of the generator's period apart: far from each other, however many there are,
# and without the power of two in their distance that would correlate them.
GOLDEN_JUMP = 0x9E3779B97F4A7C15F39CC0605CEDC835

# With a full covariance, the surrogate's update takes a second from about here on.
LARGEST_FULL_SURROGATE = 1000

# The surrogate has the mean run twice in the first of so many iterations, with so many episodes between; and
# every other time a sample as well, where returns are noisy.
REPEATING, EPISODES_BETWEEN = 4, 24

# Of more new episodes than this the surrogate takes those nearest to the belief.
MOST_AT_ONCE = 2000

# A search has come to its end where the returns differ by less than this share of what was gained, get no
# better by more than so many standard errors, and are hardly explained; or by less than the second share, the
# rest being rounding; or where so many of their standard deviations are missing to what was found before.
CLOSED_IN, TELLING = 0.01, 2.0
ROUNDING = 1e-12
BEATEN = 10.0
# Then it looks around for so many episodes, and so many per parameter at least; each time twice as many as
# the time before. The next one begins with a belief so many times as wide as what that has told.
LOOKING, LOOKING_PER_PARAMETER = 600, 4
MARGIN = 1.5
# In noise nothing comes to its end: where more than this share of the returns was neither explained nor
# noise, a search looks around once it has learned from as many episodes as that takes; but it goes on as
# before if, seen from there, less than the second share is unexplained, or if the look leads back to where it
# was. The former is known after so many times as many episodes as are kept.
ROUGH, SMOOTH = 0.65, 0.3
SEEN_ENOUGH = 1.5

# In noise, samples of the surrogate are so many times as wide as the belief at most.
WIDEST = 50.0

# Samples further from the belief than this many of its standard deviations cannot be computed with.
FURTHEST = 1e50


@dataclass(frozen=True)
class Adam:
    """Steps of the mean shaped by Adam (Kingma 2015), each parameter's at most about `learning_rate` long."""

    learning_rate: float
    decay: float = 0.9
    decay_squares: float = 0.999

    def __call__(
        self, step: FloatArray, memory: tuple[FloatArray, ...], iteration: int
    ) -> tuple[FloatArray, tuple[FloatArray, ...]]:
        """Shape the step of the 0-based `iteration`; `memory` is empty before the first."""
        first, second = memory or (np.zeros_like(step), np.zeros_like(step))
        first = self.decay * first + (1 - self.decay) * step
        second = self.decay_squares * second + (1 - self.decay_squares) * np.square(step)
        k = iteration + 1
        size = np.sqrt(second / (1 - self.decay_squares**k))
        direction = np.divide(first / (1 - self.decay**k), size, out=np.zeros_like(step), where=size > 0)
        return self.learning_rate * direction, (first, second)


@dataclass(frozen=True)
class Search:
    """The settings that turn an update rule into an algorithm.

    Attributes
    ----------
    name
        What the algorithm is called.
    update
        The update rule.
    covariance
        "full" or "diagonal"; None for the surrogate lets the number of parameters decide.
    effectiveness
        How to measure which coordinates matter: a name, a callable, or None if nothing depends on it.
    n_effective
        How many count as effective; None takes half of them.
    reduce
        Update the effective coordinates only.
    damping
        Variance factor of the others when sampling; 1 is off.
    soft
        Weigh by relative effectiveness rho instead of choosing: std <- (1 - rho) std_old + rho std_new, and
        sampling variances times rho.
    mirrored
        Draw samples in pairs mean + z, mean - z.
    step
        Shapes the step of the mean, or None.
    reuse
        How many of the latest earlier episodes every update learns from again, besides the new ones. None for
        the surrogate lets the number of parameters and the noise decide.
    """

    name: str
    update: Update | RelevanceSurrogate
    covariance: Literal["full", "diagonal"] | None = "full"
    effectiveness: str | Effectiveness | None = None
    n_effective: int | None = None
    reduce: bool = False
    damping: float = 1.0
    soft: bool = False
    mirrored: bool = False
    step: Adam | None = None
    reuse: int | None = 0

    def __post_init__(self) -> None:
        left_open = isinstance(self.update, RelevanceSurrogate)
        if not (left_open and self.covariance is None):
            one_of("covariance", str(self.covariance), ("full", "diagonal"))
        if not (left_open and self.reuse is None):
            whole("reuse", self.reuse, 0)  # type: ignore[arg-type]
        share("damping", self.damping)
        if not isinstance(self.reduce, bool):
            raise ValueError(f"reduce must be True or False, but {self.reduce!r} came.")
        if self.n_effective is not None:
            whole("n_effective", self.n_effective, 1)
        if self.effectiveness is not None:
            resolve(self.effectiveness)
        elif self.reduce or self.soft or self.damping < 1 or self.n_effective is not None:
            raise ValueError(
                "n_effective, reduce and damping need to know which parameters matter: "
                'pass effectiveness="pearson" or another measure as well.'
            )

    @property
    def fewest(self) -> int:
        """The smallest number of good episodes that an update can use."""
        return self.update.n_elite if isinstance(self.update, CrossEntropy) else 2

    def usual_batch(self, n: int) -> int:
        """Episodes per update that suit n parameters where nobody says."""
        if isinstance(self.update, RelevanceSurrogate):
            return max(8, 2 * round(0.4 * math.sqrt(n)))  # even, as samples come in pairs
        return 50

    @property
    def full(self) -> bool:
        """Whether a full covariance is learned."""
        return self.covariance == "full"

    def sized(self, n: int) -> Search:
        """The same with all that the number of parameters decides."""
        if self.covariance is not None:
            return self
        return replace(self, covariance="full" if n <= LARGEST_FULL_SURROGATE else "diagonal")

    def keeps(self, n: int, noisy: bool) -> int:
        """How many episodes to learn from again, with n parameters and returns with noise or without."""
        if self.reuse is not None:
            return self.reuse
        if noisy and unknowns(n, self.full) <= FEWEST_IN_NOISE:
            return FEWEST_IN_NOISE
        return min(max(FEWEST_KEPT, 2 * n), MOST_KEPT) if self.full else FEWEST_KEPT

    def check_size(self, n: int) -> None:
        """Raise a ValueError if these settings cannot serve n parameters."""
        if self.n_effective is not None and self.n_effective > n:
            raise ValueError(
                f"n_effective must be a whole number from 1 to the number of parameters, {n}, "
                f"but {self.n_effective} came."
            )
        if self.full and not self.reduce and n > LARGEST_FULL:
            raise ValueError(
                f"a full covariance of {n} parameters takes {8e-9 * n * n:.0f} GB: use "
                "covariance='diagonal', or an algorithm that reduces, dr_creps or dr_reps, with a small "
                "n_effective."
            )


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes, the latest last.

    Attributes
    ----------
    theta : (k, n)
    returns : (k,)
        Finite.
    twin : (k,)
        1 where the next row mirrors this one, -1 where the one before does; 2 and 3 where both are the mean,
        4 and 5 where both are the same sample; 0 where it is on its own.
    """

    theta: FloatArray
    returns: FloatArray
    twin: IntArray

    def rows(self, chosen: IntArray) -> Episodes:
        """Some of them."""
        return Episodes(self.theta[chosen], self.returns[chosen], self.twin[chosen])


@dataclass(frozen=True, eq=False)
class Start:
    """How a search by the surrogate began.

    Attributes
    ----------
    mean, std : (n,)
        Of its first belief.
    level
        Average of its first returns; NaN if it is not known.
    """

    mean: FloatArray
    std: FloatArray
    level: float


@dataclass(frozen=True, eq=False)
class Found:
    """What a search has come to: its last belief, and the level of the returns there."""

    belief: Gaussian
    level: float


@dataclass(frozen=True, eq=False)
class State:
    """All that a search carries from one update to the next.

    Attributes
    ----------
    belief
        The search distribution that samples are drawn from.
    iteration
        Number of updates so far.
    exploration : (n,) or None
        Factors of the belief's variances when sampling; None before the first update and where all are 1.
    memory
        What the surrogate or the shaping of steps remembers; empty for most algorithms.
    kept
        Earlier episodes to learn from again, None where none are.
    attempt
        How many searches have come to their end before this one.
    found
        The best that these have come to; None if there were none.
    ahead
        Whether this one is better than that by now.
    start
        How this one began, where the surrogate has to know; None before its first update.
    looking
        Whether it looks around, taking ruggedness for noise.
    aside
        The search that looked around, while another closes in on what it saw; that one as long as it may go
        on, while it looks around; None where there is none.
    spent
        Episodes that this one has learned from so far.
    rough
        How rough the landscape is: what was neither explained nor noise, as a share of the returns, of the
        first search before it had closed in; and what was not explained of the first look around.
    rare
        Whether good returns have been rare at a time when nothing was explained, and there was no noise.
    """

    belief: Gaussian
    iteration: int = 0
    exploration: FloatArray | None = None
    memory: tuple[FloatArray, ...] = ()
    kept: Episodes | None = None
    attempt: int = 0
    found: Found | None = None
    ahead: bool = True
    start: Start | None = None
    looking: bool = False
    aside: State | None = None
    spent: int = 0
    rough: float = 0.0
    rare: bool = False

    @property
    def best(self) -> Gaussian:
        """The belief to use: this one, or that of an earlier attempt as long as it is better."""
        return self.belief if self.ahead or self.found is None else self.found.belief


def streams(seed: int, iteration: int, indices: Iterable[int]) -> Iterator[np.random.Generator]:
    """A generator for each of the given samples of an iteration.

    Each depends on (seed, iteration, index) alone: however the samples of an iteration are asked for, one by
    one or all at once, they are the same. The generator is reused: draw from it before the next one is taken.
    """
    bits = np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=(iteration, 0)))
    generator = np.random.Generator(bits)
    start = bits.state
    for index in indices:
        bits.state = start
        bits.advance(index * GOLDEN_JUMP % 2**128)
        yield generator


def ask(search: Search, state: State, seed: int, first: int, count: int) -> FloatArray:
    """Samples `first` to `first` + `count` - 1 of this iteration, (count, n)."""
    belief = state.belief
    variances = belief.variances if state.exploration is None else belief.variances * state.exploration
    indices = np.arange(first, first + count)
    sources = indices // 2 if search.mirrored else indices
    unlike = range(int(sources[0]), int(sources[-1]) + 1)
    drawn = np.empty((len(unlike), belief.n_parameters))
    for row, rng in zip(drawn, streams(seed, state.iteration, unlike), strict=True):
        rng.standard_normal(out=row)  # ~ N(0, I)
    noise = drawn[sources - sources[0]]
    if search.mirrored:  # sample 2k + 1 is the mirror image of sample 2k
        noise[indices % 2 == 1] *= -1
        if first < 4 and asks_mean(search, state):
            noise[indices < 2] = 0
            if asks_again(state):  # sample 3 is sample 2 once more
                noise[indices == 3] *= -1
    return belief.shaped(noise, np.sqrt(variances))


def asks_mean(search: Search, state: State) -> bool:
    """Whether samples 0 and 1 of this iteration are the mean: what noise there is, and what the spread costs.

    The surrogate does so now and then, unless what it keeps says that there is no noise.
    """
    if not isinstance(search.update, RelevanceSurrogate) or state.looking:
        return False
    if state.kept is None and state.attempt:  # it begins anew
        return True
    if state.iteration % REPEATING:
        return False
    if state.kept is None:
        return True
    returns, twin = state.kept.returns, state.kept.twin
    return TWICE[0] not in twin[-EPISODES_BETWEEN:] and not noiseless(measured_noise(returns, twin))


def asks_again(state: State) -> bool:
    """Whether a sample is run twice as well: what noise there is away from the mean, every other time."""
    if state.kept is None or not measured_noise(state.kept.returns, state.kept.twin).any():
        return False
    repeated = state.kept.twin[state.kept.twin >= TWICE[0]]
    return repeated[-1] in TWICE


def tell(
    search: Search, state: State, theta: FloatArray, returns: FloatArray, seed: int
) -> tuple[State, UpdateInfo]:
    """Update the belief from episodes (N, n) and their finite returns (N,); a pure function."""
    surrogate = isinstance(search.update, RelevanceSurrogate)
    episodes = fresh = Episodes(theta, returns, np.zeros(returns.size, dtype=np.int64))
    noise = np.empty(0)
    if search.reuse or surrogate:
        fresh = arrange(state.belief, fresh, surrogate)
        episodes = with_kept(state, fresh)
        theta, returns = episodes.theta, episodes.returns
        noise = ruggedness(state) if state.looking else measured_noise(returns, episodes.twin)
        n_kept = min(search.keeps(theta.shape[1], bool(noise.any())), returns.size)
        latest = np.arange(returns.size - n_kept, returns.size)
        state = replace(state, kept=episodes.rows(latest) if n_kept else None)
    if (returns == returns[0]).all() or (surrogate and (theta == theta[0]).all()):
        info = UpdateInfo(informative=False, attempt=state.attempt)
        state = replace(state, iteration=state.iteration + 1)
        return (next_turn(search, state, fresh.returns.size, info) if surrogate else state), info
    if isinstance(search.update, RelevanceSurrogate):
        state, info = follow_surrogate(search, state, episodes, noise, fresh.returns.size)
        return next_turn(search, state, fresh.returns.size, info), info
    belief, memory = state.belief, state.memory
    rng_seed = np.random.SeedSequence(seed, spawn_key=(state.iteration, 1))
    local = belief.to_local(theta)
    choice = choose(search, local, returns, rng_seed)

    block = choice.selected if choice is not None and search.reduce else None
    variances = belief.variances if block is None else belief.variances[block]
    prior = unmixed(np.zeros(variances.size), variances)
    local = local if block is None else local[:, block]
    check_distance(local, prior)
    posterior, info = search.update(prior, local, returns, search.full)
    if choice is not None and (search.reduce or search.damping < 1 or search.soft):
        posterior = posterior.with_settled_axes()  # as axes are chosen among them
    if choice is not None and search.soft:
        posterior = soften(prior, posterior, choice.share if block is None else choice.share[block])
    new = belief.with_block(block, posterior)
    if search.step is not None:
        step, memory = search.step(new.mean - belief.mean, memory, state.iteration)
        new = replace(new, mean=belief.mean + step)
        prior, posterior = belief, new

    info = replace(
        info,
        kl=posterior.kl(prior) if isinstance(search.update, ModelBased) else prior.kl(posterior),
        entropy_drop=prior.entropy - posterior.entropy,
        effectiveness=None if choice is None else choice.effectiveness,
        selected=None if choice is None else choice.selected,
    )
    exploration = None
    if choice is not None and (search.damping < 1 or search.soft):
        if search.full and not search.reduce:
            # the update turned all axes, so ask the same batch which of the new ones matter
            choice = choose(search, new.to_local(theta), returns, rng_seed) or choice
        exploration = choice.share.copy() if search.soft else np.ones(new.n_parameters)
        exploration[choice.others] *= search.damping
    return State(new, state.iteration + 1, exploration, memory, state.kept), info


def arrange(belief: Gaussian, new: Episodes, pairs: bool) -> Episodes:
    """New episodes to be kept; if `pairs`, the nearest of very many, twins next to each other."""
    local = belief.to_local(new.theta)
    check_distance(local, belief)
    if not pairs:
        return new
    z = local / np.sqrt(belief.variances)
    if len(z) > MOST_AT_ONCE:
        nearest = np.sort(np.argsort(np.square(z).sum(1), kind="stable")[:MOST_AT_ONCE])
        z, new = z[nearest], new.rows(nearest)
    order, twin = find_twins(z)
    return Episodes(new.theta[order], new.returns[order], twin)


def with_kept(state: State, new: Episodes) -> Episodes:
    """Episodes to learn from again and then the new ones; those that the belief left far behind are dropped.

    All count alike. Weights for the change of the belief since they were drawn would be proper, but in many
    dimensions nearly all of the weight would fall to the newest few.
    """
    if state.kept is None:
        return new
    belief, old = state.belief, state.kept
    reach = FURTHEST * math.sqrt(float(belief.variances.min()))
    if not (np.abs(old.theta - belief.mean).max() * math.sqrt(belief.n_parameters) <= reach):
        old = old.rows(np.flatnonzero(within_reach(belief.to_local(old.theta), belief)))
    return Episodes(
        np.concatenate([old.theta, new.theta]),
        np.concatenate([old.returns, new.returns]),
        np.concatenate([old.twin, new.twin]),
    )


def follow_surrogate(
    search: Search, state: State, episodes: Episodes, noise: FloatArray, n_new: int
) -> tuple[State, UpdateInfo]:
    """The update of the surrogate, with what is known of the noise (P,); see :mod:`klimb.surrogate`."""
    belief = state.belief
    prior = unmixed(np.zeros(belief.n_parameters), belief.variances)
    start = state.start
    if start is None:
        start = Start(belief.mean, belief.std, average(episodes.returns[-n_new:]))
    rotation = belief.rotation if belief.mixed.size else None
    away = measured_noise(episodes.returns, episodes.twin, AWAY)
    episodes = run_once(episodes)
    twins = matched(episodes.twin)
    # a look is not given up before it had a chance to explain what it sees
    seen_enough = state.rare and episodes.returns.size >= FEWEST_KEPT
    learned = learn(
        prior,
        episodes.theta - belief.mean,
        episodes.returns,
        twins,
        search.full,
        remembered(state),
        n_new,
        noise,
        state.exploration,
        rotation,
        rare=seen_enough if state.looking else rarely_good(episodes.returns),
        away=away,
        look=state.looking,
    )
    new = belief.with_block(None, learned.posterior)
    seen = learned.seen
    info = UpdateInfo(
        kl=learned.posterior.kl(prior),
        entropy_drop=prior.entropy - learned.posterior.entropy,
        eta=learned.eta,
        effective_sample_size=float(episodes.returns.size),
        effectiveness=seen if seen.ndim == 1 else np.diag(seen).copy(),
        relevance=by_parameter(belief, seen, start.std),
        skill=learned.skill,
        attempt=state.attempt,
    )
    state = replace(
        state,
        belief=new,
        iteration=state.iteration + 1,
        exploration=wide_look(new, start, learned.noise),
        memory=tuple(learned.memory),
        start=start,
        spent=state.spent + n_new,
        rough=state.rough + seen_roughness(search, state, learned, n_new),
        rare=state.rare or learned.walks,
    )
    return state, info


def run_once(episodes: Episodes) -> Episodes:
    """Samples that were run twice as one episode with the average of their returns, as if on their own."""
    first = pairs(episodes.twin, AWAY)
    if first.size == 0:
        return episodes
    returns, twin = episodes.returns.copy(), episodes.twin.copy()
    returns[first] = returns[first] / 2 + returns[first + 1] / 2
    twin[first] = 0
    others = np.delete(np.arange(returns.size), first + 1)
    return Episodes(episodes.theta, returns, twin).rows(others)


def remembered(state: State) -> Memory | None:
    """What the surrogate remembers; None if nothing yet, or if an earlier version has made it."""
    if len(state.memory) != len(Memory._fields):
        return None
    memory = Memory(*state.memory)
    return memory if memory.spread.shape == (2,) else None


def seen_roughness(search: Search, state: State, learned: Learned, n_new: int) -> float:
    """What these new episodes add to :attr:`State.rough`, which is an average over a part of a search."""
    n, n_kept = state.belief.n_parameters, search.keeps(state.belief.n_parameters, noisy=False)
    if state.looking:
        begin, end, rough = n_kept, SEEN_ENOUGH * n_kept, 1 - learned.skill
    else:  # before it has closed in
        begin, end, rough = min(n_kept // 2, 8 * n), min(n_kept, 16 * n), learned.rough
    first = state.attempt == state.looking
    return rough * n_new / (end - begin) if first and begin <= state.spent < end else 0.0


def wide_look(belief: Gaussian, start: Start, noise: float) -> FloatArray | None:
    """Factors of the variances when sampling, (n,), for the share of `noise` in what is unexplained.

    Where all of it is noise, the samples are as wide as those of the first belief, as differences between
    returns are large there and the noise is not; with less, in proportion of the logarithms. Never narrower
    than the belief, nor more than :data:`WIDEST` times as wide.
    """
    if noise == 0:
        return None
    first = np.square(start.std)
    first[belief.mixed] = np.square(belief.rotation).T @ first[belief.mixed]  # along the axes of the belief
    factors: FloatArray = np.minimum(np.maximum(1.0, first / belief.variances) ** noise, WIDEST**2)
    return factors


def ruggedness(state: State) -> FloatArray:
    """Variance of the returns that no quadratic explains, as if it were noise, and measured by all pairs.

    Seen from afar it is: valleys that are narrow against the spread of the samples differ from what is smooth
    by now more, now less, and an average over many samples tells what is beneath.
    """
    memory = remembered(state)
    if state.kept is None or memory is None:
        return np.empty(0)
    with np.errstate(over="ignore"):
        return np.full(state.kept.returns.size // 2, float(memory.rest[0] * memory.spread[VALUES] ** 2))


def next_turn(search: Search, state: State, n_new: int, info: UpdateInfo) -> State:
    """Go on, or look around where the search is over, or close in on what was seen.

    What was found is kept until there is something better. Where so many of the kept episodes are new that
    these do not tell, nothing is over. `info` is that of the last update.
    """
    kept, n_kept = state.kept, search.keeps(state.belief.n_parameters, noisy=False)
    if kept is not None and kept.returns.size >= n_kept:
        noise = measured_noise(kept.returns, kept.twin)
        half = slice(kept.returns.size // 2, None)
        # in noise samples are drawn wider than the belief: what counts is the mean itself, run twice
        counts = np.isin(kept.twin[half], TWICE) if noise.any() else slice(None)
        later = kept.returns[half][counts]
        level = average(later) if later.size else -math.inf
        state = replace(state, ahead=state.found is None or level > state.found.level)
        explained = info.skill is not None and info.skill > EXPLAINED
        told = not state.looking and 4 * n_new <= kept.returns.size
        if told and over(state, kept.returns, noise, explained):
            return looking_around(state, level, noiseless(noise))
    return after_looking(state, n_kept) if state.looking else state


def over(state: State, returns: FloatArray, noise: FloatArray, explained: bool) -> bool:
    """Whether a search with these kept returns has come to its end, or in noise (P,) has gone on for long."""
    if noiseless(noise):
        half, first = returns.size // 2, math.nan if state.start is None else state.start.level
        best = -math.inf if state.found is None else state.found.level
        return at_end(returns[:half], returns[half:], first, best, explained)
    n = state.belief.n_parameters
    turn = looks(n, state.attempt + 1) - looks(n, state.attempt)
    return bool(noise.any()) and state.rough > ROUGH and state.spent >= turn


def after_looking(state: State, n_kept: int) -> State:
    """Look on, or close in on what was seen; or let the search that stands aside go on.

    That is where there are no valleys to choose from, or the one that was seen is the one that it is in.
    """
    seen = state.spent >= looks(state.belief.n_parameters, state.attempt)
    smooth = state.spent >= SEEN_ENOUGH * n_kept and state.rough < SMOOTH
    if state.aside is not None and (smooth or (seen and leads_back(state))):
        return replace(state.aside, iteration=state.iteration, rough=0.0)
    return closing_in(state) if seen else state


def leads_back(looker: State) -> bool:
    """Whether what was found lies within what was seen, where it matters.

    Its squared distance in standard deviations of the belief is an average over directions, by relevance.
    """
    belief, memory = looker.belief, remembered(looker)
    if looker.found is None or memory is None:
        return False
    z = belief.to_local(looker.found.belief.mean[None])[0] / np.sqrt(belief.variances)
    weighted = memory.relevance @ z if memory.relevance.ndim == 2 else memory.relevance * z
    return float(z @ weighted) <= 1.0


def looks(n: int, attempt: int) -> int:
    """Episodes of looking around, in all, before the search of this number closes in on n parameters."""
    return max(LOOKING, LOOKING_PER_PARAMETER * n) * ((1 << attempt) - 1)


def looking_around(state: State, level: float, for_good: bool) -> State:
    """Look at the landscape as a whole, or go on with that where it stopped the time before.

    At first it looks as widely as the search began, around the best that was found. What the search has
    come to is kept if its `level` is the best so far. Unless it is left `for_good` it stands aside then, as
    it may go on.
    """
    looker, start = state.aside, state.start
    found = Found(state.belief, level) if state.ahead else state.found
    if looker is None:
        assert start is not None
        assert found is not None
        looker = State(diagonal(found.belief.mean, start.std), looking=True, rare=state.rare)
    aside = replace(state, aside=None) if state.ahead and not for_good else None
    return replace(
        looker, iteration=state.iteration, attempt=state.attempt + 1, found=found, ahead=False, aside=aside
    )


def closing_in(looker: State) -> State:
    """A search that begins with what was seen of the landscape as a whole, somewhat less sure of it."""
    view = replace(looker.belief, variances=MARGIN**2 * looker.belief.variances)
    return State(
        view,
        looker.iteration,
        attempt=looker.attempt,
        found=looker.found,
        ahead=False,
        aside=replace(looker, found=None, aside=None),
        rough=1.0,
        rare=looker.rare,
    )


def average(returns: FloatArray) -> float:
    """Mean of returns (k,), be they huge."""
    with np.errstate(over="ignore"):
        return float(returns.mean())


def at_end(
    earlier: FloatArray, later: FloatArray, first: float, found: float = -math.inf, explained: bool = False
) -> bool:
    """Whether returns (k,) are no longer better than earlier ones, and closing in will not make them so.

    `first` is the level that the search began with, `found` the best level before it. A search that creeps
    along a valley gets better by far more than the returns of an update differ, and one whose returns are
    `explained` knows where to go, even if it has lost its way for a while.
    """
    largest = max(float(np.abs(earlier).max()), float(np.abs(later).max()), abs(first), 1e-300)
    before, now = earlier / largest, later / largest
    level, spread = float(now.mean()), float(now.std())
    gain, better = level - first / largest, level - float(before.mean())
    error = math.sqrt((float(before.var()) + spread**2) / now.size)
    beaten = level + BEATEN * spread < found / largest
    stands = better <= TELLING * error and not explained
    return spread < CLOSED_IN * gain and (stands or spread < ROUNDING * gain or beaten)


def by_parameter(belief: Gaussian, seen: FloatArray, unit: FloatArray) -> FloatArray:
    """How much each parameter matters: its squared slope, per `unit` of the parameter, in shares of 1.

    `seen` is that of the whitened coordinates, (n, n) or its diagonal (n,).
    """
    if seen.ndim == 1:
        slopes = seen / belief.variances
    elif belief.mixed.size:
        axes = belief.rotation / np.sqrt(belief.variances)
        slopes = np.maximum(np.einsum("ij,ij->i", axes @ seen, axes), 0.0)
    else:
        slopes = np.diag(seen) / belief.variances
    influence = slopes / slopes.max() * np.square(unit / unit.max()) if slopes.max() > 0 else slopes
    total = float(influence.sum())
    shares: FloatArray = influence / total if total > 0 else np.full(influence.size, 1 / influence.size)
    return shares


@dataclass(frozen=True, eq=False)
class Choice:
    """Which local coordinates matter.

    Attributes
    ----------
    effectiveness : (n,)
    selected : (m,)
        The coordinates that count as effective, ascending.
    """

    effectiveness: FloatArray
    selected: IntArray

    @property
    def others(self) -> NDArray[np.bool_]:
        """True for the coordinates not selected, (n,)."""
        others = np.ones(self.effectiveness.size, dtype=np.bool_)
        others[self.selected] = False
        return others

    @property
    def share(self) -> FloatArray:
        """Rho: effectiveness as a share of the largest, (n,) in [0, 1]; all 1 where nothing is effective."""
        top = self.effectiveness.max()
        if top <= 0:
            return np.ones_like(self.effectiveness)
        return np.maximum(self.effectiveness, 0.0) / top  # type: ignore[no-any-return]


def choose(
    search: Search, local: FloatArray, returns: FloatArray, seed: np.random.SeedSequence
) -> Choice | None:
    """Measure every local coordinate and take the n_effective best; None if the search does not ask."""
    if search.effectiveness is None:
        return None
    n = local.shape[1]
    measure = resolve(search.effectiveness)
    effectiveness = numbers("effectiveness", measure(local, returns, np.random.default_rng(seed)))
    if effectiveness.shape != (n,) or np.isnan(effectiveness).any():
        raise ValueError(
            f"effectiveness must return one number per parameter, shape ({n},), and no NaN; "
            f"the shape is {effectiveness.shape} with {int(np.isnan(effectiveness).sum())} NaN."
        )
    return Choice(effectiveness, largest(effectiveness, search.n_effective or max(1, n // 2)))


def largest(values: FloatArray, count: int) -> IntArray:
    """Indices of the `count` largest values, ascending; of equals, those that come first."""
    threshold = np.partition(values, values.size - count)[values.size - count]
    chosen = values > threshold
    missing = count - int(chosen.sum())
    chosen[np.flatnonzero(values == threshold)[:missing]] = True
    return np.flatnonzero(chosen)


def soften(prior: Gaussian, posterior: Gaussian, rho: FloatArray) -> Gaussian:
    """Move each standard deviation only the share rho of its way; correlations stay as fitted."""
    old, fitted = np.sqrt(prior.variances), posterior.std
    new = (1 - rho) * old + rho * fitted
    if not posterior.mixed.size:
        return unmixed(posterior.mean, np.square(new))
    scale = new / fitted / old
    rows = np.sqrt(posterior.variances)[:, None] * posterior.rotation.T * scale
    log_det = float(np.log(posterior.variances).sum() + 2 * np.log(scale).sum())
    return from_whitened(posterior.mean, old, rows, log_det)


def within_reach(local: FloatArray, prior: Gaussian) -> NDArray[np.bool_]:
    """Which samples (N, n) do not lie absurdly far from the belief, (N,)."""
    near: NDArray[np.bool_] = np.all(np.abs(local) <= FURTHEST * np.sqrt(prior.variances), axis=1)
    return near


def check_distance(local: FloatArray, prior: Gaussian) -> None:
    """Refuse samples that lie absurdly far from the belief."""
    near = within_reach(local, prior)
    if not near.all():
        row = int(np.flatnonzero(~near)[0])
        raise ValueError(
            f"theta[{row}] lies more than {FURTHEST:g} standard deviations from the belief; "
            "leave it out, or start with a larger std."
        )
