"""Evaluate a task in several processes; the returns are those of one process, to the last bit.

    with Workers(task, 4) as workers:
        result = klimb.maximize(workers, klimb.dr_creps(), ...)

:class:`Workers` is itself a task (:class:`klimb.tasks.Task`), so whatever takes a task takes it. That is the
one protocol of evaluation: ``evaluate(theta, seed)``, where every episode has a seed of its own. A batch can
therefore be cut anywhere, and each piece evaluated wherever and whenever there is time for it.

Workers are new Python processes ("spawn"), never forks: a fork of a process with threads (BLAS, a simulator,
a notebook) may hang. So a script that starts them needs the usual ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import inspect
import pickle
import signal
import traceback
from collections import deque
from dataclasses import fields, is_dataclass, replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._processes import Worker, available_cores, end, exit_code, settle_in, start
from klimb._validation import FloatArray, samples, whole
from klimb.tasks.task import Task, episode_seeds

BoolArray = NDArray[np.bool_]

# Pieces per worker: several, since episodes differ in length, but not so many that messages dominate.
PIECES_PER_WORKER = 4


class Piece(NamedTuple):
    """Part of a batch, as it is sent to a worker."""

    number: int
    theta: FloatArray
    seeds: NDArray[np.uint64]
    options: dict[str, Any]


class Reply(NamedTuple):
    """What comes back."""

    number: int
    """Of the piece, never used before; -1 says that the worker is ready."""
    result: Any
    """What ``task.evaluate`` returned."""
    error: Exception | None = None
    """Or what it raised."""


class Workers:
    """A task that is evaluated by worker processes.

    Parameters
    ----------
    task
        What to evaluate. It is pickled, so it and what it refers to must be importable: classes and functions
        at the top level of a module.
    count
        How many processes; None: one per core that this process may use.

    Notes
    -----
    Use it in a ``with`` statement, which ends the processes however it is left, Ctrl-C included; or call
    :meth:`close`. Workers also end when their parent does. They use one thread each (BLAS, numba, and a
    task's own `threads`).
    """

    def __init__(self, task: Task, count: int | None = None) -> None:
        count = available_cores() if count is None else whole("count", count, 1)
        self.task = task
        self._workers: list[Worker] = []
        self._numbers = 0
        pickled = _pickled(task)
        try:
            for _ in range(count):
                self._workers.append(start(_work, pickled))
            for worker in self._workers:
                ready = self._receive(worker)
                if ready.error is not None:
                    raise ready.error
        except BaseException:
            self.close()
            raise

    @property
    def n_parameters(self) -> int:
        """Length of a parameter vector."""
        return self.task.n_parameters

    @property
    def optimum(self) -> float | None:
        """The best possible return, or None."""
        return self.task.optimum

    @property
    def initial_std(self) -> float:
        """The task's standard deviation to start with."""
        return self.task.initial_std

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[False] = False
    ) -> FloatArray: ...

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[True]
    ) -> tuple[FloatArray, BoolArray]: ...

    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: bool = False
    ) -> FloatArray | tuple[FloatArray, BoolArray]:
        """Give what ``task.evaluate`` gives; an exception in a worker is raised here.

        Raises
        ------
        RuntimeError
            If a worker process dies, or after :meth:`close`.
        """
        if not self._workers:
            raise RuntimeError("these workers are closed; make new ones.")
        theta = samples("theta", theta, self.n_parameters)
        seeds = episode_seeds(seed, len(theta))
        options = {"return_success": True} if return_success else {}
        if return_success and "return_success" not in inspect.signature(self.task.evaluate).parameters:
            raise ValueError(f"{type(self.task).__name__}.evaluate has no return_success; leave it out.")
        if len(theta) == 0:
            return self.task.evaluate(theta, seeds, **options)
        results = self._evaluate(self._cut(theta, seeds, options))
        if return_success:
            returns, success = zip(*results, strict=True)
            return np.concatenate(returns), np.concatenate(success)
        return np.concatenate(results)

    def close(self) -> None:
        """End the processes; calling it again does no harm."""
        workers, self._workers = self._workers, []
        end(workers)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cut(self, theta: FloatArray, seeds: NDArray[np.uint64], options: dict[str, Any]) -> list[Piece]:
        count = min(len(theta), PIECES_PER_WORKER * len(self._workers))
        pieces = zip(np.array_split(theta, count), np.array_split(seeds, count), strict=True)
        first = self._numbers
        self._numbers += count
        return [Piece(first + place, *piece, options) for place, piece in enumerate(pieces)]

    def _evaluate(self, pieces: list[Piece]) -> list[Any]:
        """Results of the pieces, in their order."""
        waiting = deque(pieces)
        results: dict[int, Any] = {}
        for worker in self._workers:
            self._send_next(worker, waiting)
        lines = {worker.line: worker for worker in self._workers}
        while len(results) < len(pieces):
            for line in wait(list(lines)):
                worker = lines[line]  # type: ignore[index]
                reply = self._receive(worker)
                if reply.number < pieces[0].number:
                    continue  # of a batch that an exception broke off
                if reply.error is not None:
                    raise reply.error
                results[reply.number] = reply.result
                self._send_next(worker, waiting)
        return [results[piece.number] for piece in pieces]

    def _send_next(self, worker: Worker, waiting: deque[Piece]) -> None:
        if waiting:
            try:
                worker.line.send(waiting.popleft())
            except OSError:
                self._mourn(worker)

    def _receive(self, worker: Worker) -> Reply:
        try:
            reply: Reply = worker.line.recv()
        except (EOFError, OSError):
            self._mourn(worker)
        return reply

    def _mourn(self, worker: Worker) -> NoReturn:
        """Raise what is to be said about a worker that died; the others end too."""
        code = exit_code(worker)
        self.close()
        cause = f"with exit code {code}"
        if code is not None and code < 0:
            cause = f"by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                cause += ", which is often the system's answer to a lack of memory: try fewer workers"
        raise RuntimeError(
            f"a worker process ended {cause}. If that happened at the start, put the code that makes Workers "
            "under `if __name__ == '__main__':`. Else evaluate the same batch with task.evaluate in this "
            "process to see the fault, and then make new Workers."
        )


def _pickled(task: Task) -> bytes:
    """The task as bytes, told to use one thread."""
    modest: Any = task
    if is_dataclass(modest) and any(field.name == "threads" for field in fields(modest)):
        modest = replace(modest, threads=1)  # type: ignore[type-var]
    try:
        return pickle.dumps(modest)
    except Exception as error:  # pickling runs the code of any class, which can raise anything
        raise ValueError(
            f"task must be picklable to be sent to worker processes, but {type(task).__name__} is not: "
            f"{error}. Define its classes and functions at the top level of a module (no lambdas), and make "
            "simulators and files when they are first used."
        ) from error


def _work(line: Connection, pickled: bytes) -> None:
    """What a worker process does: evaluate pieces until the line breaks."""
    settle_in()
    try:
        task: Task = pickle.loads(pickled)
    except Exception as error:
        text = (
            f"task cannot be unpickled in a worker process: {error}. Its class must be importable there: put "
            "it into a module (a notebook or an interactive session is none)."
        )
        line.send(Reply(-1, None, ValueError(text)))
        return
    line.send(Reply(-1, None))
    while True:
        try:
            piece: Piece = line.recv()
        except (EOFError, OSError):
            return  # the parent has gone
        try:
            reply = Reply(piece.number, task.evaluate(piece.theta, piece.seeds, **piece.options))
        except Exception as error:
            reply = Reply(piece.number, None, _portable(error))
        try:
            line.send(reply)
        except OSError:
            return


def _portable(error: Exception) -> Exception:
    """The exception with its traceback as a note, in a form that survives the way to another process."""
    error.add_note("klimb: in a worker process:\n" + "".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        substitute.__notes__ = error.__notes__
        return substitute
    return error
