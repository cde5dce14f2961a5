"""Evaluate a task in several processes or on a cluster; the returns are those of one process, to the bit.

    with Workers(task, 4) as workers:
        result = klimb.maximize(workers, klimb.dr_creps(), ...)

:class:`Workers` is itself a task (:class:`klimb.tasks.Task`), so whatever takes a task takes it. That is the
one protocol of evaluation: ``evaluate(theta, seed)``, where every episode has a seed of its own. A batch can
therefore be cut anywhere, and each piece evaluated wherever and whenever there is time for it.

Workers are new Python processes ("spawn"), never forks: a fork of a process with threads (BLAS, a simulator,
a notebook) may hang. So a script that starts them needs the usual ``if __name__ == "__main__":``.
"""

from klimb.evaluation.scheduler import WorkerWarning
from klimb.evaluation.workers import Collected, Workers

__all__ = ["Collected", "WorkerWarning", "Workers"]
