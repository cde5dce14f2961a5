"""Jobs in worker processes, in any order; a worker that dies takes no other job with it.

Like :class:`klimb.evaluation.Workers`, but for jobs that take seconds or minutes and are independent: here a
worker that dies is replaced and its job done once more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple

from klimb.evaluation import ONE_THREAD

ATTEMPTS = 2  # of a job whose worker dies
PATIENCE = 5.0  # seconds that a worker has to leave before it is killed

Job = tuple[Any, ...]


class Outcome(NamedTuple):
    """What became of a job: its result, or why there is none."""

    job: Job
    result: Any = None
    trouble: str | None = None


class Worker(NamedTuple):
    """A process and the line to it."""

    process: BaseProcess
    line: Connection


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def do_all(function: Callable[..., Any], jobs: Sequence[Job], workers: int) -> Iterator[Outcome]:
    """Call ``function(*job)`` for every job and give the outcomes as they come.

    With one worker it happens in this process. The function must be importable: workers are new processes
    ("spawn"). An exception is the outcome of its job; it would come again, so the job is not repeated.
    Leaving the iteration early, by Ctrl-C for one, ends the workers at once.
    """
    if workers == 1:
        for job in jobs:
            yield _attempt(function, job)
        return
    waiting = deque((job, 1) for job in jobs)
    idle: list[Worker] = []
    busy: dict[Connection, tuple[Worker, Job, int]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _start(function)
                job, attempt = waiting.popleft()
                busy[worker.line] = worker, job, attempt
                with suppress(OSError):  # it has died: its line says so below
                    worker.line.send(job)
            for line in wait(list(busy)):
                worker, job, attempt = busy.pop(line)  # type: ignore[call-overload]
                try:
                    outcome: Outcome = worker.line.recv()
                except (EOFError, OSError):
                    trouble = _bury(worker)
                    if attempt < ATTEMPTS:
                        waiting.appendleft((job, attempt + 1))
                    else:
                        yield Outcome(job, trouble=f"{trouble}, {ATTEMPTS} times")
                    continue
                idle.append(worker)
                yield outcome
    finally:
        _end(idle + [worker for worker, _, _ in busy.values()])


def _attempt(function: Callable[..., Any], job: Job) -> Outcome:
    try:
        return Outcome(job, function(*job))
    except Exception as error:  # whatever a run raises must not end the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return Outcome(job, trouble=f"{type(error).__name__} in {where}: {error}")


def _start(function: Callable[..., Any]) -> Worker:
    spawn = multiprocessing.get_context("spawn")
    line, other_end = spawn.Pipe()
    with _one_thread():
        process = spawn.Process(target=_work, args=(function, other_end), daemon=True)
        process.start()
    other_end.close()  # so that the line breaks when the worker does
    return Worker(process, line)


def _work(function: Callable[..., Any], line: Connection) -> None:
    """What a worker does: jobs, until the line breaks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    while True:
        try:
            job = line.recv()
        except (EOFError, OSError):
            return
        outcome = _attempt(function, job)
        try:
            line.send(outcome)
        except OSError:
            return


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _bury(worker: Worker) -> str:
    """Clear away a worker that died; how it ended."""
    worker.process.join(PATIENCE)
    code = worker.process.exitcode
    _end([worker])
    if code is not None and code < 0:
        cause = f"by {signal.Signals(-code).name}"
        return f"its worker was ended {cause}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    return f"its worker ended with exit code {code}"


def _end(workers: list[Worker]) -> None:
    for worker in workers:
        worker.process.terminate()
    for worker in workers:
        worker.process.join(PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.process.close()
        worker.line.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let processes that start in here use one thread each."""
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
