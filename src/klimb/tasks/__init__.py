"""Problems to learn, by name.

A task is listed with the place of its class, not the class itself, so that what it needs (a simulator, say)
is imported when the task is made. To add one, give it an entry in :data:`TASKS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from klimb._validation import lookup, nearest
from klimb.tasks.task import Task, episode_seeds

__all__ = ["TASKS", "Task", "TaskEntry", "episode_seeds", "make_task"]


@dataclass(frozen=True)
class TaskEntry:
    """A line of the list of tasks.

    Attributes
    ----------
    description
        What there is to learn, in one line.
    factory
        What makes the task from its options: a callable, or "module:name" to import it from when needed.
    fixed
        Options that the task's name stands for, and a user cannot give.
    """

    description: str
    factory: str | Callable[..., Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Return the factory, imported if need be."""
        if not isinstance(self.factory, str):
            return self.factory
        module, _, name = self.factory.partition(":")
        factory: Callable[..., Any] = getattr(import_module(module), name)
        return factory

    def options(self) -> dict[str, Any]:
        """Return names and defaults of the options that a user can give."""
        parameters = inspect.signature(self.load()).parameters.values()
        return {option.name: option.default for option in parameters if option.name not in self.fixed}


def _function(name: str, description: str) -> TaskEntry:
    return TaskEntry(description, "klimb.tasks.functions:Function", {"function": name})


TASKS: dict[str, TaskEntry] = {
    "lqr": TaskEntry(
        "gains of a linear controller, 3 of 100 matter (the paper's LQR)", "klimb.tasks.lqr:LQR"
    ),
    "sphere": _function("sphere", "the sum of squares, its optimum moved off the start"),
    "rosenbrock": _function("rosenbrock", "a curved narrow valley"),
    "rastrigin": _function("rastrigin", "a bowl with a grid of local optima"),
    "styblinski-tang": _function("styblinski-tang", "two optima per coordinate, one a little better"),
    "himmelblau": _function("himmelblau", "four equal optima per pair of coordinates"),
}


def make_task(name: str, /, **options: Any) -> Task:
    """Make the task of that name.

    Parameters
    ----------
    name
        A key of :data:`TASKS`.
    **options
        The task's own options, such as ``n_states=20`` of "lqr"; the rest keep their defaults.

    Raises
    ------
    ValueError
        If there is no such task or option, or an option's value cannot be used.
    """
    entry = lookup("task", name, TASKS)
    known = entry.options()
    for option in options:
        if option not in known:
            raise ValueError(f"unknown option {option!r} of task {name!r}: {nearest(option, known)}")
    task: Task = entry.load()(**options, **entry.fixed)
    return task
