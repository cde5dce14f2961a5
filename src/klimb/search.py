"""One search step: ask for samples, tell their returns.

Guided dimensionality reduction and prioritized exploration are settings here, for any update rule. Both work
in the local coordinates of the belief, where its covariance is diagonal:

    reduce     update only the n_effective coordinates that matter most (GDR)
    damping    sample the others with their variance times this factor (PE's lambda)
    soft       weigh every coordinate by its relative effectiveness instead (PRO)

Earlier episodes can be learned from again:

    reuse      how many of them join every update

What a search by the surrogate does besides is in :mod:`klimb.surrogate`.
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
from klimb.gaussian import Gaussian, from_whitened, unmixed
from klimb.state import Episodes, State
from klimb.surrogate.follow import asks_again, asks_mean, follow, ruggedness
from klimb.surrogate.model import FEWEST_IN_NOISE, FEWEST_KEPT, MOST_KEPT, unknowns
from klimb.surrogate.noise import measured_noise
from klimb.surrogate.turns import next_turn
from klimb.surrogate.twins import find_twins
from klimb.updates import CrossEntropy, ModelBased, RelevanceSurrogate, Update, UpdateInfo

# A full covariance beyond this number of parameters would take more than 12 GB.
LARGEST_FULL = 40_000

# Streams start the golden ratio of the generator's period apart: far from each other, however many there are,
# and without the power of two in their distance that would correlate them.
GOLDEN_JUMP = 0x9E3779B97F4A7C15F39CC0605CEDC835

# With a full covariance, the surrogate's update takes a second from about here on.
LARGEST_FULL_SURROGATE = 1000

# Of more new episodes than this the surrogate takes those nearest to the belief.
MOST_AT_ONCE = 2000

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
        left_open = self.models
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
        if self.models:
            return max(8, 2 * round(0.4 * math.sqrt(n)))  # even, as samples come in pairs
        return 50

    @property
    def models(self) -> bool:
        """Whether it follows the surrogate."""
        return isinstance(self.update, RelevanceSurrogate)

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
        if first < 4 and search.models and asks_mean(state):
            noise[indices < 2] = 0
            if asks_again(state):  # sample 3 is sample 2 once more
                noise[indices == 3] *= -1
    return belief.shaped(noise, np.sqrt(variances))


def tell(
    search: Search, state: State, theta: FloatArray, returns: FloatArray, seed: int
) -> tuple[State, UpdateInfo]:
    """Update the belief from episodes (N, n) and their finite returns (N,); a pure function."""
    episodes = fresh = Episodes(theta, returns, np.zeros(returns.size, dtype=np.int64))
    noise = np.empty(0)
    if search.reuse or search.models:
        fresh = arrange(state.belief, fresh, search.models)
        episodes = with_kept(state, fresh)
        theta, returns = episodes.theta, episodes.returns
        noise = ruggedness(state) if state.looking else measured_noise(returns, episodes.twin)
        last = min(search.keeps(theta.shape[1], bool(noise.any())), returns.size)
        latest = np.arange(returns.size - last, returns.size)
        state = replace(state, kept=episodes.rows(latest) if last else None)
    n_new, n_kept = fresh.returns.size, search.keeps(theta.shape[1], noisy=False)
    if (returns == returns[0]).all() or (search.models and (theta == theta[0]).all()):
        info = UpdateInfo(informative=False, attempt=state.attempt)
        state = replace(state, iteration=state.iteration + 1)
    elif search.models:
        state, info = follow(state, episodes, noise, n_new, n_kept, search.full)
    else:
        return updated(search, state, theta, returns, seed)
    return (next_turn(state, n_kept, n_new, info) if search.models else state), info


def updated(
    search: Search, state: State, theta: FloatArray, returns: FloatArray, seed: int
) -> tuple[State, UpdateInfo]:
    """Follow an update rule that knows no more than these episodes, on the coordinates that are chosen."""
    assert not isinstance(search.update, RelevanceSurrogate)
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
