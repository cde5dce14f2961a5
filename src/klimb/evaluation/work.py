"""What travels between here and a worker, and what a worker does with it; the same on every way."""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray
from klimb.tasks.task import Task

BoolArray = NDArray[np.bool_]


class Piece(NamedTuple):
    """Part of a batch, as it is sent to a worker."""

    theta: FloatArray
    seeds: NDArray[np.uint64]
    options: dict[str, Any]


class Reply(NamedTuple):
    """What comes back."""

    returns: FloatArray | None
    success: BoolArray | None = None
    error: Exception | None = None
    """What ``task.evaluate`` raised."""
    seconds: float = 0.0
    """How long it took."""


def prepare(pickled: bytes, version: str) -> Callable[[Piece], Reply]:
    """Unpack a task that a klimb of `version` has sent; what evaluates pieces of it."""
    from klimb import __version__

    if version != __version__:
        raise ValueError(
            f"a worker has klimb {__version__}, but klimb {version} sent the task: install the same version "
            f"everywhere, for example with pip install klimb=={version}"
        )
    try:
        task: Task = pickle.loads(pickled)
    except Exception as error:
        raise ValueError(
            f"task cannot be unpickled in a worker process: {error}. Its class must be importable there: put "
            "it into a module (a notebook or an interactive session is none)."
        ) from None
    return partial(evaluate, task)


def evaluate(task: Task, piece: Piece) -> Reply:
    """Evaluate a piece; an exception travels in the reply."""
    begin = time.perf_counter()
    try:
        given: Any = task.evaluate(piece.theta, piece.seeds, **piece.options)
        returns, success = given if piece.options else (given, None)
        returns = np.asarray(returns)
        if returns.shape != (len(piece.theta),):
            raise ValueError(
                f"{type(task).__name__}.evaluate must give one return per episode, shape "
                f"({len(piece.theta)},), but the shape is {returns.shape}."
            )
    except Exception as error:
        return Reply(None, error=_portable(error))
    return Reply(returns, success, None, time.perf_counter() - begin)


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
