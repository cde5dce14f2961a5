"""Worker processes: how they start, use one thread each, and end, also when their parent does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

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
    """A process and the line to it."""

    process: BaseProcess
    line: Connection


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start(target: Callable[..., None], *arguments: Any) -> Worker:
    """Start ``target(line, *arguments)`` in a new process; it must be importable ("spawn")."""
    spawn = multiprocessing.get_context("spawn")
    line, other_end = spawn.Pipe()
    with _one_thread():
        process = spawn.Process(target=target, args=(other_end, *arguments), daemon=True)
        process.start()
    other_end.close()  # so that the line breaks when the worker does
    return Worker(process, line)


def settle_in() -> None:
    """What a worker does first: leave Ctrl-C to its parent, and leave with it."""
    # Ctrl-C reaches all processes of a terminal: what to do about it is the parent's to decide
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def end(workers: Iterable[Worker]) -> None:
    """End workers, whatever they are doing."""
    workers = list(workers)
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
        worker.line.close()


def exit_code(worker: Worker) -> int | None:
    """How a worker that died has ended: below 0, the signal that ended it."""
    worker.process.join(PATIENCE)
    return worker.process.exitcode


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
