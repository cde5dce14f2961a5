"""Jobs in worker processes, in any order; a worker that dies takes no other job with it.

Like :class:`klimb.evaluation.Workers`, but for jobs that take seconds or minutes and are independent.
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from klimb._crew import Crew
from klimb._processes import end, poll, start

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
    waiting = deque(enumerate(jobs))
    attempts = [0] * len(jobs)
    left = len(jobs)
    crew = Crew(workers, partial(start, _prepare, function), poll, end, cost=0.0)
    try:
        while left:
            while waiting and crew.room:
                crew.submit(*waiting.popleft())
            for number, outcome, lost in crew.wait():
                attempts[number] += 1
                if lost is not None and attempts[number] < ATTEMPTS:
                    waiting.appendleft((number, jobs[number]))
                    continue
                left -= 1
                yield outcome or Outcome(jobs[number], trouble=f"{lost}, {ATTEMPTS} times")
    finally:
        crew.close()


def _prepare(function: Callable[..., Any]) -> Callable[[Job], Outcome]:
    return partial(_attempt, function)


def _attempt(function: Callable[..., Any], job: Job) -> Outcome:
    try:
        return Outcome(job, function(*job))
    except Exception as error:  # whatever a run raises must not end the others
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{os.path.basename(place.filename)}:{place.lineno}"
        return Outcome(job, trouble=f"{type(error).__name__} in {where}: {error}")
