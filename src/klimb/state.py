"""What a search carries from one update to the next."""

from __future__ import annotations

from dataclasses import dataclass

from klimb._validation import FloatArray, IntArray
from klimb.gaussian import Gaussian


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
