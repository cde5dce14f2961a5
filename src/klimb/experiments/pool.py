"""Jobs in worker processes, in any order; a worker that dies takes no other job with it.

Like :class:`klimb.evaluation.Workers`, but for jobs that take seconds or minutes and are independent: here a
worker that dies is replaced and its job done once more.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from klimb._processes import Worker, end, exit_code, settle_in, start

ATTEMPTS = 2  # of a job whose worker dies

Job = tuple[Any, ...]


class Outcome(NamedTuple):
    """What became of a job: its result, or why there is none."""

    job: Job
    result: Any = None
    trouble: str | None = None


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
                worker = idle.pop() if idle else start(_work, function)
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
        end(idle + [worker for worker, _, _ in busy.values()])


def _attempt(function: Callable[..., Any], job: Job) -> Outcome:
    try:
        return Outcome(job, function(*job))
    except Exception as error:  # whatever a run raises must not end the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return Outcome(job, trouble=f"{type(error).__name__} in {where}: {error}")


def _work(line: Connection, function: Callable[..., Any]) -> None:
    """What a worker does: jobs, until the line breaks."""
    settle_in()
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


def _bury(worker: Worker) -> str:
    """Clear away a worker that died; how it ended."""
    code = exit_code(worker)
    end([worker])
    if code is not None and code < 0:
        cause = f"by {signal.Signals(-code).name}"
        return f"its worker was ended {cause}" + (" (out of memory?)" if -code == signal.SIGKILL else "")
    return f"its worker ended with exit code {code}"
