"""Problems to learn, by name.

A task is listed with the place of its class, not the class itself, so that what it needs (a simulator, say)
is imported when the task is made. To add one, give it an entry in :data:`TASKS`.

Importing this package also tells Gymnasium of klimb's environments; see :mod:`klimb.tasks.environments`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from klimb._validation import lookup, nearest
from klimb.tasks.environments import register
from klimb.tasks.own import task_from_function
from klimb.tasks.task import Task, episode_seeds

__all__ = [
    "FAMILIES",
    "TASKS",
    "Task",
    "TaskEntry",
    "episode_seeds",
    "make_task",
    "task_entry",
    "task_from_function",
]

register()


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
        return {
            option.name: option.default
            for option in inspect.signature(self.load()).parameters.values()
            if option.name not in self.fixed and option.kind is not option.VAR_KEYWORD
        }

    @property
    def takes_more(self) -> bool:
        """Whether the factory takes, and checks, options beyond those listed: a policy's settings, say."""
        parameters = inspect.signature(self.load()).parameters.values()
        return any(option.kind is option.VAR_KEYWORD for option in parameters)


def _function(name: str, description: str) -> TaskEntry:
    return TaskEntry(description, "klimb.tasks.functions:Function", {"function": name})


TASKS: dict[str, TaskEntry] = {
    "lqr": TaskEntry(
        "gains of a linear controller, 3 of 100 matter (the paper's LQR)", "klimb.tasks.lqr:LQR"
    ),
    "ship-steering": TaskEntry(
        "weights of a tile-coded policy that takes a ship through a gate (450 parameters)",
        "klimb.tasks.ship_steering:ShipSteering",
    ),
    "air-hockey": TaskEntry(
        "a movement of a planar arm that shoots a puck into a goal (90 parameters)",
        "klimb.tasks.air_hockey:AirHockey",
    ),
    "ball-stopping": TaskEntry(
        "a movement of a seven-joint arm that stops a rolling ball (140 parameters)",
        "klimb.tasks.ball_stopping:BallStopping",
    ),
    "sphere": _function("sphere", "the sum of squares, its optimum moved off the start"),
    "ellipsoid": _function("ellipsoid", "a bowl a million times steeper one way than another"),
    "rosenbrock": _function("rosenbrock", "a curved narrow valley"),
    "rastrigin": _function("rastrigin", "a bowl with a grid of local optima"),
    "ackley": _function("ackley", "a funnel full of small pits"),
    "styblinski-tang": _function("styblinski-tang", "two optima per coordinate, one a little better"),
    "himmelblau": _function("himmelblau", "four equal optima per pair of coordinates"),
}

#: Names with a free second half, such as "gymnasium:Swimmer-v5"; it fills the one option in `fixed`.
FAMILIES: dict[str, TaskEntry] = {
    "gymnasium": TaskEntry(
        "any Gymnasium environment with boxes for spaces: gymnasium:Swimmer-v5",
        "klimb.tasks.gymnasium:gymnasium_task",
        {"environment": "ID"},
    ),
}


def task_entry(name: str) -> TaskEntry:
    """Find the entry of that name in :data:`TASKS` or :data:`FAMILIES`."""
    family, colon, member = str(name).partition(":")
    if colon and family in FAMILIES:
        entry = FAMILIES[family]
        return replace(entry, fixed=dict.fromkeys(entry.fixed, member))
    return lookup("task", name, TASKS | {f"{family}:ID": entry for family, entry in FAMILIES.items()})


def make_task(name: str, /, **options: Any) -> Task:
    """Make the task of that name.

    Parameters
    ----------
    name
        A key of :data:`TASKS`, or "gymnasium:" and the id of an environment.
    **options
        The task's own options, such as ``n_states=20`` of "lqr"; the rest keep their defaults.

    Raises
    ------
    ValueError
        If there is no such task or option, or an option's value cannot be used.
    """
    entry = task_entry(name)
    known = entry.options()
    for option in options:
        if option not in known and (option in entry.fixed or not entry.takes_more):
            raise ValueError(f"unknown option {option!r} of task {name!r}: {nearest(option, known)}")
    task: Task = entry.load()(**options, **entry.fixed)
    return task
