"""The steps of a search by the surrogate: what it asks for, and how it goes on from what it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import Gaussian, unmixed
from klimb.state import Episodes, Start, State
from klimb.surrogate.learning import Learned, Memory, learn
from klimb.surrogate.model import FEWEST_KEPT
from klimb.surrogate.noise import measured_noise, noiseless
from klimb.surrogate.relevance import by_parameter
from klimb.surrogate.returns import VALUES, average, rarely_good
from klimb.surrogate.twins import AWAY, TWICE, matched, run_once
from klimb.updates import UpdateInfo

# The mean is run twice in the first of so many iterations, with so many episodes between; and every other
# time a sample as well, where returns are noisy.
REPEATING, EPISODES_BETWEEN = 4, 24
# In noise, samples are so many times as wide as the belief at most.
WIDEST = 50.0
# A look around has told how rough the landscape is after so many times as many episodes as are kept.
SEEN_ENOUGH = 1.5


def asks_mean(state: State) -> bool:
    """Whether samples 0 and 1 of this iteration are the mean: what noise there is, and what the spread costs.

    So it is now and then, unless what is kept says that there is no noise.
    """
    if state.looking:
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


def follow(
    state: State, episodes: Episodes, noise: FloatArray, n_new: int, n_kept: int, full: bool
) -> tuple[State, UpdateInfo]:
    """The update of the surrogate, with what is known of the noise (P,).

    The last `n_new` of the episodes are new; `n_kept` are kept in the long run where there is no noise.
    """
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
        full,
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
        rough=state.rough + seen_roughness(state, learned, n_new, n_kept),
        rare=state.rare or learned.walks,
    )
    return state, info


def remembered(state: State) -> Memory | None:
    """What the surrogate remembers; None if nothing yet, or if an earlier version has made it."""
    if len(state.memory) != len(Memory._fields):
        return None
    memory = Memory(*state.memory)
    return memory if memory.spread.shape == (2,) else None


def seen_roughness(state: State, learned: Learned, n_new: int, n_kept: int) -> float:
    """What these new episodes add to :attr:`State.rough`, which is an average over a part of a search."""
    n = state.belief.n_parameters
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
