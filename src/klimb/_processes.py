"""Worker processes: how they start, use one thread each, and end, also when their parent does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from klimb._crew import Ended

# Each worker has one core; more threads would only get in each other's way.
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
PATIENCE = 5.0  # seconds that a worker has to leave before it is killed


class Worker(NamedTuple):
    """A process and the line to it: a hand of a :class:`klimb._crew.Crew`."""

    process: BaseProcess
    line: Connection

    def send(self, message: Any) -> None:
        """Give it something to do; that it has died is for :meth:`receive` to say."""
        with suppress(OSError):
            self.line.send(message)

    def receive(self) -> Any:
        """What it answered; raises :class:`Ended` if it has died."""
        try:
            return self.line.recv()
        except (EOFError, OSError):
            raise Ended(f"a worker process {_ending(self)}") from None

    def end(self) -> None:
        """End it at once, whatever it is doing, and clear it away."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self.line.close()


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(prepare: Callable[..., Callable[[Any], Any]], *arguments: Any) -> Worker:
    """Start a new process ("spawn") that answers messages with what ``prepare(*arguments)`` gives.

    `prepare` must be importable. Its own answer, before any message, is None, or the exception it raised.
    """
    spawn = multiprocessing.get_context("spawn")
    line, other_end = spawn.Pipe()
    with _one_thread():
        process = spawn.Process(target=_serve, args=(other_end, prepare, *arguments), daemon=True)
        process.start()
    other_end.close()  # so that the line breaks when the worker does
    return Worker(process, line)


def poll(workers: Sequence[Worker], seconds: float | None) -> list[Worker]:
    """Those that have something to say, or have died; none after so many seconds."""
    lines = {worker.line: worker for worker in workers}
    return [lines[line] for line in wait(list(lines), seconds)]  # type: ignore[index]


def end(workers: Iterable[Worker]) -> None:
    """End workers, whatever they are doing."""
    workers = list(workers)
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        worker.end()


def _serve(line: Connection, prepare: Callable[..., Callable[[Any], Any]], *arguments: Any) -> None:
    """What a worker does: answer messages until the line breaks."""
    # Ctrl-C reaches all processes of a terminal: what to do about it is the parent's to decide
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has gone
        try:
            answer = prepare(*arguments)
        except Exception as error:
            line.send(error)
            return
        line.send(None)
        while True:
            message = line.recv()
            line.send(answer(message))


def _ending(worker: Worker) -> str:
    """How a worker that died has ended, in words."""
    worker.process.join(PATIENCE)
    code = worker.process.exitcode
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    out_of_memory = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{out_of_memory}"


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in here use one thread: libraries read this when they are loaded."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _leave_with_parent() -> None:
    """End this process, also in the middle of an episode, when its parent has ended without a word."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
