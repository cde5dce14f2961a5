"""One search step: ask for samples, tell their returns.

Guided dimensionality reduction and prioritized exploration are settings here, for any update rule. Both work
in the local coordinates of the belief, where its covariance is diagonal:

    reduce     update only the n_effective coordinates that matter most (GDR)
    damping    sample the others with their variance times this factor (PE's lambda)
    soft       weigh every coordinate by its relative effectiveness instead (PRO)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray, IntArray, numbers, one_of, share, whole
from klimb.effectiveness import Effectiveness, resolve
from klimb.gaussian import Gaussian, from_whitened, unmixed
from klimb.updates import CrossEntropy, ModelBased, Update, UpdateInfo

# A full covariance beyond this number of parameters would take more than 12 GB.
LARGEST_FULL = 40_000

# Streams start the golden ratio of the generator's period apart: far from each other, however many there are,
# and without the power of two in their distance that would correlate them.
GOLDEN_JUMP = 0x9E3779B97F4A7C15F39CC0605CEDC835

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
        "full" or "diagonal".
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
    """

    name: str
    update: Update
    covariance: Literal["full", "diagonal"] = "full"
    effectiveness: str | Effectiveness | None = None
    n_effective: int | None = None
    reduce: bool = False
    damping: float = 1.0
    soft: bool = False
    mirrored: bool = False
    step: Adam | None = None

    def __post_init__(self) -> None:
        one_of("covariance", self.covariance, ("full", "diagonal"))
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

    @property
    def full(self) -> bool:
        """Whether a full covariance is learned."""
        return self.covariance == "full"

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
class State:
    """All that a search carries from one update to the next.

    Attributes
    ----------
    belief
        The search distribution.
    iteration
        Number of updates so far.
    exploration : (n,) or None
        Factors of the belief's variances when sampling; None before the first update and where all are 1.
    memory
        What the shaping of steps remembers; empty for most algorithms.
    """

    belief: Gaussian
    iteration: int = 0
    exploration: FloatArray | None = None
    memory: tuple[FloatArray, ...] = ()


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
    std = np.sqrt(variances)
    local = np.empty((count, belief.n_parameters))
    if search.mirrored:  # sample 2k + 1 is the mirror image of sample 2k
        sources = [index // 2 for index in range(first, first + count)]
        signs = [-1 if index % 2 else 1 for index in range(first, first + count)]
    else:
        sources, signs = list(range(first, first + count)), [1] * count
    for row, rng, sign in zip(local, streams(seed, state.iteration, sources), signs, strict=True):
        rng.standard_normal(out=row)  # ~ N(0, I)
        row *= std if sign > 0 else -std
    return belief.from_local(local, overwrite=True)


def tell(
    search: Search, state: State, theta: FloatArray, returns: FloatArray, seed: int
) -> tuple[State, UpdateInfo]:
    """Update the belief from episodes (N, n) and their finite returns (N,); a pure function."""
    if (returns == returns[0]).all():
        return replace(state, iteration=state.iteration + 1), UpdateInfo(informative=False)
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
    return State(new, state.iteration + 1, exploration, memory), info


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


def check_distance(local: FloatArray, prior: Gaussian) -> None:
    """Refuse samples that lie absurdly far from the belief."""
    far = ~(np.abs(local) <= FURTHEST * np.sqrt(prior.variances))
    if far.any():
        row = int(np.flatnonzero(far.any(1))[0])
        raise ValueError(
            f"theta[{row}] lies more than {FURTHEST:g} standard deviations from the belief; "
            "leave it out, or start with a larger std."
        )
