"""A task as bytes; and, where that fails, which object of it could not travel."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any

from klimb.tasks.task import Task


def pack(task: Task, dumps: Callable[[Any], bytes] = pickle.dumps) -> bytes:
    """The task as bytes, told to use one thread."""
    modest: Any = task
    if is_dataclass(modest) and any(field.name == "threads" for field in fields(modest)):
        modest = replace(modest, threads=1)  # type: ignore[type-var]
    try:
        return dumps(modest)
    except Exception:  # pickling runs the code of any class, which can raise anything
        path, thing, reason = culprit(modest, dumps)
        raise ValueError(
            f"task must be picklable to be sent to workers, but {path}, a {type(thing).__name__}, cannot "
            f"travel: {reason}. Define classes and functions at the top level of a module (no lambdas), and "
            "make simulators, files and locks when they are first used."
        ) from None


def culprit(thing: Any, dumps: Callable[[Any], bytes] = pickle.dumps) -> tuple[str, Any, str]:
    """The innermost part of `thing` that cannot be pickled: its path, itself and the reason."""
    path, seen = "task", {id(thing)}
    while True:
        for name, part in _parts(thing):
            if id(part) not in seen and _refusal(part, dumps):
                path, thing = path + name, part
                seen.add(id(part))
                break
        else:
            return path, thing, (_refusal(thing, dumps) or "").rstrip(".")


def _refusal(thing: Any, dumps: Callable[[Any], bytes]) -> str | None:
    """Why `thing` cannot be pickled; None if it can."""
    try:
        dumps(thing)
    except Exception as error:
        return str(error) or type(error).__name__
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """What pickle would take along with `thing`, by how to reach it."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, list | tuple | set | frozenset):
        yield from ((f"[{place}]", part) for place, part in enumerate(thing))
    elif isinstance(thing, partial):
        yield from ((f".{name}", getattr(thing, name)) for name in ("func", "args", "keywords"))
    elif hasattr(thing, "__self__"):
        yield ".__self__", thing.__self__
    elif not isinstance(thing, type):
        try:
            state = thing.__getstate__()
        except Exception:  # a class's own code
            return
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, Mapping):
                yield from ((f".{name}", value) for name, value in part.items())
