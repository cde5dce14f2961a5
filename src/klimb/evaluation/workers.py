"""Workers: a task that is evaluated somewhere else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from types import TracebackType
from typing import Literal, NamedTuple, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._crew import Crew
from klimb._processes import available_cores, end, poll, start
from klimb._validation import FloatArray, positive, samples, whole
from klimb.evaluation.executor import Executors
from klimb.evaluation.luggage import pack
from klimb.evaluation.scheduler import Scheduler, Transport
from klimb.evaluation.work import BoolArray, Piece, prepare
from klimb.tasks.task import Task, episode_seeds


class Collected(NamedTuple):
    """Episodes that have been evaluated, in the order of their tickets."""

    tickets: NDArray[np.int64]
    returns: FloatArray
    success: BoolArray | None


class Workers:
    """A task that is evaluated by worker processes, an executor or a Ray cluster.

    Parameters
    ----------
    task
        What to evaluate. It is pickled, so it and what it refers to must be importable: classes and functions
        at the top level of a module.
    count
        How many workers; None: one per core that this process may use, or that the cluster has.
    executor
        An executor of :mod:`concurrent.futures` to work instead, or a function that makes one.
    cluster
        The address of a Ray cluster to work instead: "auto", "ray://host:port" or "host:port".
    retries
        How often an episode is run again whose worker dies. After that it has failed: its return is NaN.
    timeout
        Seconds that an episode may take. One that takes longer loses its worker, and is run again or fails by
        the same rule. None: as long as it likes.

    Notes
    -----
    Use it in a ``with`` statement, which ends the workers however it is left, Ctrl-C included; or call
    :meth:`close`. Worker processes also end when their parent does. They use one thread each (BLAS, numba,
    and a task's own `threads`).

    A worker that dies is replaced, with a :class:`WorkerWarning` that says what became of its episodes. If
    they were several, they are run again a few at a time: only the one that killed the worker can fail.
    """

    def __init__(
        self,
        task: Task,
        count: int | None = None,
        *,
        executor: Executor | Callable[[], Executor] | None = None,
        cluster: str | None = None,
        retries: int = 1,
        timeout: float | None = None,
    ) -> None:
        count = None if count is None else whole("count", count, 1)
        retries = whole("retries", retries, 0)
        timeout = None if timeout is None else positive("timeout", timeout)
        if executor is not None and cluster is not None:
            raise ValueError("executor and cluster are two ways of which one is needed, but both came.")
        self.task = task
        self._scheduler: Scheduler | None = None
        transport = _transport(task, count, executor, cluster)
        self._scheduler = Scheduler(transport, retries=retries, timeout=timeout)

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

    @property
    def count(self) -> int:
        """How many workers there are."""
        return self._open.transport.count

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
            After :meth:`close`, and while submitted episodes are to be collected.
        """
        if self._open.under_way:
            raise RuntimeError("collect the episodes that were submitted before you evaluate others.")
        tickets = self.submit(theta, seed, return_success=return_success)
        if not len(tickets):
            options = {"return_success": True} if return_success else {}
            return self.task.evaluate(np.empty((0, self.n_parameters)), tickets, **options)
        _, returns, success = self.collect(len(tickets))
        return returns if success is None else (returns, success)

    def submit(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: bool = False
    ) -> NDArray[np.int64]:
        """Begin to evaluate the parameter vectors `theta` (N, n) and give a ticket for each, (N,)."""
        theta = samples("theta", theta, self.n_parameters)
        seeds = episode_seeds(seed, len(theta))
        if return_success and "return_success" not in inspect.signature(self.task.evaluate).parameters:
            raise ValueError(f"{type(self.task).__name__}.evaluate has no return_success; leave it out.")
        options = {"return_success": True} if return_success else {}
        return self._open.submit(Piece(theta, seeds, options))

    def collect(self, count: int = 1) -> Collected:
        """What is finished of the submitted episodes, once that are `count` of them, or all."""
        finished = sorted(self._open.collect(count), key=lambda part: part.first)
        if not finished:
            return Collected(np.empty(0, dtype=np.int64), np.empty(0), None)
        success = [part.success for part in finished if part.success is not None]
        return Collected(
            np.concatenate([np.arange(part.first, part.first + len(part.returns)) for part in finished]),
            np.concatenate([part.returns for part in finished]),
            np.concatenate(success) if success else None,
        )

    def abandon(self) -> None:
        """Forget the episodes that were submitted; those under way come to their end unheard."""
        self._open.abandon()

    def close(self) -> None:
        """End the workers; calling it again does no harm."""
        scheduler, self._scheduler = self._scheduler, None
        if scheduler is not None:
            scheduler.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _open(self) -> Scheduler:
        if self._scheduler is None:
            raise RuntimeError("these workers are closed; make new ones.")
        return self._scheduler


def _transport(
    task: Task,
    count: int | None,
    executor: Executor | Callable[[], Executor] | None,
    cluster: str | None,
) -> Transport:
    """What takes episodes to where they are evaluated."""
    from klimb import __version__

    if executor is not None:
        return Executors(executor, count, pack(task), __version__)
    if cluster is not None:
        from klimb.evaluation.cluster import connect

        return connect(cluster, task, count, __version__)
    crew = Crew(
        available_cores() if count is None else count,
        partial(start, prepare, pack(task), __version__),
        poll,
        end,
        cost=0.0002,
    )
    try:
        crew.wait_until_ready()
    except RuntimeError as error:
        crew.close()
        raise RuntimeError(
            f"{error} Put the code that makes Workers under `if __name__ == '__main__':`; if that is not it, "
            "the task cannot be loaded in a new process."
        ) from None
    except BaseException:
        crew.close()
        raise
    return crew
