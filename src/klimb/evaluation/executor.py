"""Any executor of :mod:`concurrent.futures` as a transport: of the standard library, Dask, loky, MPI."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from klimb._crew import Done
from klimb._processes import available_cores
from klimb.evaluation.work import Piece, Reply, prepare

_prepared = threading.local()


class Executors:
    """Sends pieces to an executor.

    Parameters
    ----------
    executor
        An executor, which stays the user's to shut down; or a function that makes one, which is called again
        when a dead worker has broken it.
    count
        How many pieces to submit at once; None: as many as it has workers, if it says so, or one per core.
    arguments
        Of :func:`klimb.evaluation.work.prepare`.
    """

    shared_fate = True
    cost = 0.001

    def __init__(
        self, executor: Executor | Callable[[], Executor], count: int | None, *arguments: Any
    ) -> None:
        self._make = None if isinstance(executor, Executor) else executor
        self._executor = executor if isinstance(executor, Executor) else executor()
        if not isinstance(self._executor, Executor):
            raise ValueError(
                "executor must be a concurrent.futures.Executor, or a function that makes one, but "
                f"{self._executor!r} came."
            )
        self.count: int = count or getattr(self._executor, "_max_workers", None) or available_cores()
        self._arguments = arguments
        self._futures: dict[int, Future[Reply | None]] = {}
        self._ended: queue.SimpleQueue[tuple[int, Future[Reply | None]]] = queue.SimpleQueue()
        self._held = 0  # workers that are busy with pieces that were given up
        self._executor.submit(answer, None, *arguments).result()  # raises what would go wrong every time

    @property
    def room(self) -> int:
        """How many pieces can begin at once."""
        return self.count - len(self._futures) - self._held

    def submit(self, number: int, message: Piece) -> None:
        """Hand a piece to the executor."""
        try:
            future = self._executor.submit(answer, message, *self._arguments)
        except (BrokenExecutor, OSError) as error:
            # a worker died before, or the executor broke just now, closing its pipes
            future = Future()
            future.set_exception(BrokenExecutor(str(error)))
        self._futures[number] = future
        ended = self._ended
        future.add_done_callback(lambda future: ended.put((number, future)))

    def wait(self, seconds: float | None = None) -> list[Done]:
        """What has come to an end."""
        if not self._futures and self._held >= self.count:
            raise RuntimeError(
                f"all {self.count} workers of the executor are busy with episodes that exceeded the limit, "
                "and cannot be ended from here: let klimb start the workers, by Workers(task, count)."
            )
        try:
            number, future = self._ended.get(timeout=seconds)
        except queue.Empty:
            return []
        if number not in self._futures:
            self._held -= 1
            return []
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokenExecutor):
            return self._mend(error)
        del self._futures[number]
        if future.cancelled() or error is not None:
            return [Done(number, lost=f"the executor could not run a piece ({error or 'cancelled'})")]
        return [Done(number, future.result())]

    def give_up(self, number: int) -> None:
        """Forget a piece; the worker that has begun it cannot be ended from outside."""
        self._futures.pop(number).cancel()
        self._held += 1

    def close(self) -> None:
        """Cancel what has not begun; end the executor if it was made here."""
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()
        if self._make is not None:
            self._executor.shutdown(wait=False)

    def _mend(self, error: BrokenExecutor) -> list[Done]:
        """Make a new executor in place of a broken one; all pieces are lost."""
        if self._make is None:
            raise RuntimeError(
                f"the executor is broken: {error} Make a new one, or pass a function that makes one: klimb "
                "then goes on with a new executor."
            )
        self._executor.shutdown(wait=False)
        self._executor = self._make()
        lost = [Done(number, lost="a worker of the executor died") for number in self._futures]
        self._futures, self._held = {}, 0
        self._ended = queue.SimpleQueue()  # the broken one may still have something to say
        return lost


def answer(piece: Piece | None, *arguments: Any) -> Reply | None:
    """What a worker of the executor does: unpack the task, once per thread, and evaluate a piece of it."""
    if getattr(_prepared, "arguments", None) != arguments:
        _prepared.evaluate = prepare(*arguments)
        _prepared.arguments = arguments
    return None if piece is None else _prepared.evaluate(piece)
