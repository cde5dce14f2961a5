"""A crew: hands that do one piece of work at a time each, and are replaced when they die.

What a hand is, the crew need not know: a process (:mod:`klimb._processes`) or an actor on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

PATIENCE = 180.0  # seconds that a crew without a single hand waits for one: a busy cluster may need minutes
FALSE_STARTS = 3  # hands in a row that may die before they are ready


class Ended(Exception):  # noqa: N818 - it is what happened, and becomes an error only where nobody goes on
    """A hand has died; the text says how."""


class Hand(Protocol):
    """Does one thing at a time. Its first answer comes by itself: None when it is ready, or an exception."""

    def send(self, message: Any) -> None:
        """Give it something to do."""
        ...

    def receive(self) -> Any:
        """What it answered; raises :class:`Ended` if it has died."""
        ...

    def end(self) -> None:
        """End it at once, whatever it is doing."""
        ...


class Done(NamedTuple):
    """What became of a piece of work."""

    number: int
    answer: Any = None
    lost: str | None = None
    """Why there is no answer."""


H = TypeVar("H", bound=Hand)


class Crew(Generic[H]):
    """Some hands at work.

    Parameters
    ----------
    count
        How many hands.
    start
        Starts one.
    poll
        Of some hands, those that have something to say, or have died; none after so many seconds.
    end
        Ends many.
    cost
        Seconds that a message takes, roughly.
    """

    shared_fate = False
    """Whether the end of one hand is the end of what all are doing."""

    def __init__(
        self,
        count: int,
        start: Callable[[], H],
        poll: Callable[[Sequence[H], float | None], list[H]],
        end: Callable[[Iterable[H]], None],
        *,
        cost: float,
    ) -> None:
        self.count = count
        self.cost = cost
        self._start, self._poll, self._end = start, poll, end
        self._starting: list[H] = []
        self._idle: list[H] = []
        self._busy: dict[H, int] = {}
        self._was_ready = False
        self._false_starts = FALSE_STARTS - 1  # before any was ready, one is enough to give up
        try:
            for _ in range(count):
                self._starting.append(start())
        except BaseException:
            self.close()
            raise

    @property
    def hands(self) -> list[H]:
        """All of them, those that only start included."""
        return [*self._idle, *self._busy, *self._starting]

    @property
    def room(self) -> int:
        """How many pieces can begin at once."""
        return len(self._idle)

    def submit(self, number: int, message: Any) -> None:
        """Let an idle hand begin."""
        hand = self._idle.pop()
        self._busy[hand] = number
        hand.send(message)

    def wait(self, seconds: float | None = None) -> list[Done]:
        """What has come to an end; nothing after so many seconds, or when a hand has become ready."""
        nobody = not (self._busy or self._idle)
        heard = self._poll([*self._busy, *self._starting], PATIENCE if nobody else seconds)
        if nobody and not heard:
            raise RuntimeError(f"no worker was ready within {PATIENCE:g} s, and none is at work.")
        done = []
        for hand in heard:
            if hand in self._busy:
                number = self._busy[hand]
                try:
                    answer = hand.receive()
                except Ended as ended:
                    done.append(Done(number, lost=str(ended)))
                    self._replace(hand)
                    continue
                done.append(Done(number, answer))
                del self._busy[hand]
                self._idle.append(hand)
            else:
                self._welcome(hand)
        return done

    def wait_until_ready(self, seconds: float = PATIENCE) -> None:
        """Wait for all hands, or after so many seconds for one; raises what keeps a hand from starting."""
        until = time.monotonic() + seconds
        while self._starting and (not self._idle or time.monotonic() < until):
            self.wait(max(0.0, until - time.monotonic()))

    def give_up(self, number: int) -> None:
        """End the hand that does a piece of work; another one takes its place."""
        for hand in [hand for hand, at in self._busy.items() if at == number]:
            self._replace(hand)

    def close(self) -> None:
        """End all hands; calling it again does no harm."""
        hands = self.hands
        self._starting, self._idle, self._busy = [], [], {}
        self._end(hands)

    def _welcome(self, hand: H) -> None:
        try:
            trouble = hand.receive()
        except Ended as ended:
            self._false_starts += 1
            if self._false_starts < FALSE_STARTS:
                self._replace(hand)
                return
            hand.end()
            self._starting.remove(hand)
            if not self._was_ready or not self.hands:
                raise RuntimeError(f"{ended} before it was ready.") from None
            return  # go on with the others
        if trouble is not None:
            raise trouble
        self._was_ready, self._false_starts = True, 0
        self._starting.remove(hand)
        self._idle.append(hand)

    def _replace(self, hand: H) -> None:
        """Clear away a hand and start another."""
        hand.end()
        self._busy.pop(hand, None)
        if hand in self._starting:
            self._starting.remove(hand)
        self._starting.append(self._start())
