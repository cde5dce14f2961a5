"""Who evaluates which episodes when: pieces of a fitting size, faults, time limits, results in any order.

The scheduler knows nothing of processes or machines. A *transport* takes pieces there and says what came of
them; the scheduler cuts the pieces, from measured durations, and decides what becomes of one that is lost.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from klimb._crew import Done
from klimb._validation import FloatArray
from klimb.evaluation.work import BoolArray, Piece, Reply

LONGEST = 0.05  # seconds that a piece takes, if an episode takes less
WORTH = 10  # a piece takes at least so many times as long as a message
SHARES = 2  # cut the rest of a batch into so many pieces per worker, so that all end at about the same time
SPLIT = 64  # parts that a piece whose worker died is cut into, to find the culprit
CALM = 4  # a piece is to take no more than this part of the time limit


class WorkerWarning(RuntimeWarning):
    """A worker died, or an episode took too long; the text says what becomes of the episodes."""


class Transport(Protocol):
    """Takes pieces to where they are evaluated."""

    @property
    def count(self) -> int:
        """How many pieces it works on at once, when all is well."""
        ...

    @property
    def cost(self) -> float:
        """Seconds that a message takes, roughly."""
        ...

    @property
    def shared_fate(self) -> bool:
        """Whether the death of one worker loses the pieces of all."""
        ...

    @property
    def room(self) -> int:
        """How many pieces can begin at once, now."""
        ...

    def submit(self, number: int, message: Any) -> None:
        """Begin a piece."""
        ...

    def wait(self, seconds: float | None) -> list[Done]:
        """What has come to an end, as soon as there is something; may be nothing after so many seconds."""
        ...

    def give_up(self, number: int) -> None:
        """Stop working on a piece, of which nothing more will be heard."""
        ...

    def close(self) -> None:
        """Leave no process behind."""
        ...


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive episodes of a batch that wait to be evaluated."""

    first: int
    """The ticket of the first one; the others count on from it."""
    piece: Piece
    attempts: int = 0
    """How often a worker died of it, or of what it was part of."""
    alone: bool = False
    """Whether nothing else may be under way beside it: the only way to convict it where fate is shared."""

    def __len__(self) -> int:
        return len(self.piece.theta)

    def cut(self, begin: int, end: int) -> Span:
        """Episodes `begin` to `end` of it."""
        theta, seeds, options = self.piece
        return replace(
            self, first=self.first + begin, piece=Piece(theta[begin:end], seeds[begin:end], options)
        )


class Finished(NamedTuple):
    """Consecutive episodes that have been evaluated."""

    first: int
    returns: FloatArray
    success: BoolArray | None


class Flight(NamedTuple):
    """A piece under way; without a span, nobody waits for it any more."""

    span: Span | None
    deadline: float


class Scheduler:
    """Evaluates episodes somewhere else.

    Parameters
    ----------
    transport
        Takes them there.
    retries
        How often an episode is run again whose worker died, or that exceeded the limit.
    timeout
        Seconds that an episode may take; None: as long as it likes.
    """

    def __init__(self, transport: Transport, *, retries: int, timeout: float | None) -> None:
        self.transport = transport
        self._retries, self._timeout = retries, timeout
        self._waiting: deque[Span] = deque()
        self._flights: dict[int, Flight] = {}
        self._finished: list[Finished] = []
        self._tickets = self._numbers = 0
        self._pace: float | None = None  # seconds per episode, as measured
        self._news: list[str] = []

    @property
    def under_way(self) -> int:
        """Number of episodes that have been submitted and not collected."""
        return self._flying + sum(map(len, self._waiting)) + self._ready

    @property
    def _flying(self) -> int:
        return sum(len(flight.span) for flight in self._flights.values() if flight.span is not None)

    @property
    def _ready(self) -> int:
        return sum(len(finished.returns) for finished in self._finished)

    def submit(self, piece: Piece) -> NDArray[np.int64]:
        """Evaluate episodes when there is time; a ticket for each."""
        first, count = self._tickets, len(piece.theta)
        self._tickets += count
        if count:
            self._waiting.append(Span(first, piece))
        self._feed()
        return np.arange(first, first + count)

    def collect(self, count: int) -> list[Finished]:
        """What is finished, once that are `count` episodes or all; in any order.

        An exception of the task is raised here, and ends everything that was submitted.
        """
        try:
            while self._ready < count and (self._waiting or self._flying):
                self._feed()
                self._take(self.transport.wait(self._patience()))
                self._end_overdue()
            self._feed()
        except BaseException:
            self.abandon()
            raise
        finally:
            news, self._news = self._news, []
            for text in news:
                warnings.warn(text, WorkerWarning, stacklevel=4)
        finished, self._finished = self._finished, []
        return finished

    def abandon(self) -> None:
        """Forget what was submitted; what is under way will come to its end unheard."""
        self._waiting.clear()
        self._finished.clear()
        self._flights = {number: flight._replace(span=None) for number, flight in self._flights.items()}

    def _feed(self) -> None:
        """Send pieces to whom there is room for."""
        left = sum(map(len, self._waiting))
        while self._waiting and self.transport.room:
            span = self._waiting.popleft()
            guarded = span.alone or any(
                flight.span and flight.span.alone for flight in self._flights.values()
            )
            if guarded and self._flights:
                self._waiting.appendleft(span)
                return
            size = self._size(left)
            if size < len(span):
                self._waiting.appendleft(span.cut(size, len(span)))
                span = span.cut(0, size)
            left -= len(span)
            self._numbers += 1
            limit = math.inf if self._timeout is None else time.monotonic() + self._timeout
            self._flights[self._numbers] = Flight(span, limit)
            self.transport.submit(self._numbers, span.piece)

    def _size(self, left: int) -> int:
        """How many episodes to send at once if so many wait."""
        share = math.ceil(left / (SHARES * self.transport.count))
        if self._pace is None:
            return share if self._timeout is None else 1
        pace = max(self._pace, 1e-9)
        size = max(WORTH * self.transport.cost / pace, min(share, LONGEST / pace))
        if self._timeout is not None:
            size = min(size, self._timeout / CALM / pace)
        return max(1, round(min(size, left)))

    def _patience(self) -> float | None:
        """Seconds until the next piece is overdue."""
        deadline = min((flight.deadline for flight in self._flights.values()), default=math.inf)
        return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())

    def _take(self, ended: Iterable[Done]) -> None:
        """Take in what came of pieces."""
        error: Exception | None = None
        lost: list[tuple[Span, str]] = []
        for number, answer, cause in ended:
            span = self._flights.pop(number).span
            if span is None:
                continue
            if cause is not None:
                lost.append((span, cause))
                continue
            reply: Reply = answer
            if reply.error is not None or reply.returns is None:
                error = error or reply.error
                continue
            self._finished.append(Finished(span.first, reply.returns, reply.success))
            measured = reply.seconds / len(span)
            # faster at once, slower bit by bit: a first episode often compiles or loads something
            slower = measured if self._pace is None else 0.7 * self._pace + 0.3 * measured
            self._pace = min(measured, slower)
        together = self.transport.shared_fate and len(lost) > 1
        for span, cause in reversed(lost):
            self._lose(span, cause, together)
        if error is not None:
            raise error

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for number in [number for number, flight in self._flights.items() if flight.deadline <= now]:
            span = self._flights.pop(number).span
            self.transport.give_up(number)
            if span is not None:
                self._lose(span, f"the limit of {self._timeout:g} s was exceeded", together=False)

    def _lose(self, span: Span, cause: str, together: bool) -> None:
        """A piece was lost: run its episodes again, or let an episode fail that was lost by itself."""
        by_itself = len(span) == 1 and not together
        attempts = span.attempts + 1 if by_itself else min(span.attempts + 1, self._retries)
        episodes = "an episode" if len(span) == 1 else f"{len(span)} episodes"
        if attempts > self._retries:
            seed = int(span.piece.seeds[0])
            times = f", {attempts} times" if attempts > 1 else ""
            self._news.append(f"{cause}{times}: the episode with seed {seed} failed, its return is NaN.")
            success = np.zeros(1, dtype=np.bool_) if span.piece.options else None
            self._finished.append(Finished(span.first, np.full(1, np.nan), success))
            return
        self._news.append(f"{cause}: {episodes} will be run again.")
        again = replace(span, attempts=attempts, alone=span.alone or together)
        bounds = np.linspace(0, len(span), min(len(span), SPLIT) + 1).round().astype(int).tolist()
        parts = [again.cut(begin, end) for begin, end in pairwise(bounds)]
        self._waiting.extendleft(reversed(parts))
