"""When a search by the surrogate has come to its end, and what comes next.

It looks around: at the landscape as a whole, taking what is rugged for noise. Then another search closes in
on what that has told. What was found is kept until there is something better.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from klimb._validation import FloatArray
from klimb.gaussian import diagonal
from klimb.state import Found, State
from klimb.surrogate.follow import SEEN_ENOUGH, remembered
from klimb.surrogate.learning import EXPLAINED
from klimb.surrogate.noise import measured_noise, noiseless
from klimb.surrogate.returns import average
from klimb.surrogate.twins import TWICE
from klimb.updates import UpdateInfo

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
# was.
ROUGH, SMOOTH = 0.62, 0.3


def next_turn(state: State, n_kept: int, n_new: int, info: UpdateInfo) -> State:
    """Go on, or look around where the search is over, or close in on what was seen.

    `n_kept` episodes are kept in the long run where there is no noise, `n_new` are new; where so many of the
    kept ones are that they do not tell, nothing is over. `info` is that of the last update.
    """
    kept = state.kept
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
