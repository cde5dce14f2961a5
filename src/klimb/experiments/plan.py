"""What a figure of the paper consists of: a TOML file read, checked and resolved to runs.

A run is the settings of one variant, complete with every default, and a seed. The settings do not name the
figure: the same run in two figures is one run. Their hash names it on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Any

from klimb._validation import is_number, lookup, nearest, one_of, positive, whole
from klimb.algorithms import ALGORITHMS, BASELINES, Algorithm, make_algorithm
from klimb.report.figures import LINES, PALETTE
from klimb.tasks import task_entry

#: What a run does with its settings, as a number: to be raised when that changes, so that no run from before
#: is taken for one from after.
PROTOCOL = 1

# Settings that came later, with the value that leaves a run as it was before: it keeps its hash.
LATER = (("reuse", 0),)

SEARCH, ESTIMATORS, OVERVIEW = "search", "mi-estimators", "overview"
KINDS = (SEARCH, ESTIMATORS, OVERVIEW)
METRICS = ("belief_return", "mean_policy_return", "success_rate", "precision", "recall")

Settings = dict[str, Any]


@dataclass(frozen=True)
class Variant:
    """One line of a figure.

    Attributes
    ----------
    name, label
        For the command line and the files, and for the legend.
    algorithm, settings
        As for :func:`klimb.make_algorithm`.
    batch, epochs
        Episodes per update, and updates.
    rollouts
        Episodes of which the return of a sample is the average; they count.
    panel
        Title of the panel to draw it in; "" for all panels.
    seeds
        At most so many, where a run takes very long; None for as many as the figure has.
    colour, line
        Names of the palette's colour and of the line style.
    sweep
        The paper's ranges, (values per setting).
    """

    name: str
    label: str
    algorithm: str
    batch: int
    epochs: int
    settings: Settings = field(default_factory=dict)
    rollouts: int = 1
    panel: str = ""
    seeds: int | None = None
    colour: str = ""
    line: str = "solid"
    sweep: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def entry(self) -> Algorithm:
        """The algorithm in the list of all."""
        return (ALGORITHMS | BASELINES)[self.algorithm]


@dataclass(frozen=True)
class Figure:
    """A figure: a task, how it is evaluated, and variants; or a study of another kind with its `problem`.

    Attributes
    ----------
    std
        Standard deviation to start with, around zero.
    draws
        Parameter vectors from the belief that judge it after every epoch; they do not count as episodes.
    seeds, first_seed
        How many runs per variant, and the seed of the first; the others follow it. Seeds on which a task was
        tried while it was being designed do not count as evidence, so some figures begin further up.
    metrics
        Columns to draw, a panel each.
    problem
        The numbers of a figure that is no search.
    """

    name: str
    title: str
    kind: str = SEARCH
    task: str = ""
    options: Settings = field(default_factory=dict)
    std: float = 1.0
    draws: int = 100
    seeds: int = 25
    first_seed: int = 0
    metrics: tuple[str, ...] = ("belief_return",)
    problem: Settings = field(default_factory=dict)
    variants: tuple[Variant, ...] = ()

    def variant(self, name: str) -> Variant:
        """Return the variant of that name."""
        return lookup(f"variant of {self.name}", name, {variant.name: variant for variant in self.variants})

    def resolve(self, variant: Variant) -> Settings:
        """Everything that a run of this variant depends on but for its seed."""
        if self.kind != SEARCH:
            return {"kind": self.kind, "protocol": PROTOCOL, **self.problem}
        options = {**task_entry(self.task).options(), **self.options}
        options.pop("threads", None)  # no return depends on it
        defaults = variant.entry.settings
        settings = {
            name: float(value) if is_number(value) and isinstance(defaults[name], float) else value
            for name, value in {**defaults, **variant.settings}.items()  # 17 and 17.0 are one setting
            if (name, value) not in LATER
        }
        return {
            "kind": SEARCH,
            "protocol": PROTOCOL,
            "task": self.task,
            "options": options,
            "std": self.std,
            "draws": self.draws,
            "algorithm": variant.algorithm,
            "settings": settings,
            "batch": variant.batch,
            "rollouts": variant.rollouts,
            "epochs": variant.epochs,
        }

    def seeds_of(self, variant: Variant, wanted: int | None = None) -> range:
        """The seeds to run: as many as the figure has unless another number is wanted."""
        count = self.seeds if wanted is None else wanted
        count = count if variant.seeds is None else min(count, variant.seeds)
        return range(self.first_seed, self.first_seed + count)


def canonical(settings: Mapping[str, Any]) -> str:
    """The one way to write settings: JSON with sorted names and no spaces."""
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def hash_of(settings: Mapping[str, Any]) -> str:
    """The first 16 hexadecimal digits of the settings' SHA-256."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()[:16]


def figure_names() -> list[str]:
    """All figures of the paper, in its order."""
    files = {entry.name.removesuffix(".toml") for entry in _files().iterdir() if entry.name.endswith(".toml")}
    tasks = ("lqr", "ship-steering", "air-hockey", "ball-stopping")
    order = ["lqr-diag", "lqr-full", "precision-recall", *tasks[1:]]
    order += [f"baselines-{task}" for task in tasks] + ["ablation-reps", "ablation-creps"]
    order += [f"random-{task}" for task in tasks] + ["mi-estimators", "overview"]
    return sorted(files, key=lambda name: (order.index(name) if name in order else len(order), name))


def load_figure(name: str) -> Figure:
    """Read a figure of the paper by its name, or one of the user's own by the path of its TOML file.

    Raises
    ------
    ValueError
        If there is no such figure, or its file says something that cannot be.
    """
    source: Traversable
    if name.endswith(".toml"):
        source, name = Path(name), Path(name).stem
    else:
        lookup("figure", name, dict.fromkeys(figure_names()))
        source = _files() / f"{name}.toml"
    try:
        table = tomllib.loads(source.read_text("utf-8"))
        return _figure(name, table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"figure {str(source)!r}: {error}") from None


def _files() -> Traversable:
    return resources.files("klimb.experiments") / "figures"


def check_keys(
    where: str, table: Mapping[str, Any], known: Iterable[str], needed: Iterable[str] = ()
) -> None:
    """Raise a ValueError that names an unknown key, or a key that is missing."""
    known = list(known)
    for key in table:
        if key not in known:
            raise ValueError(f"unknown key {key!r} in {where}: {nearest(key, known)}")
    for key in needed:
        if key not in table:
            raise ValueError(f"{where} needs the key {key!r}.")


def _figure(name: str, table: Settings) -> Figure:
    known = ["title", "kind", "task", "options", "std", "draws", "seeds", "first_seed", "metrics", "problem"]
    known.append("variant")
    check_keys("the figure", table, known, ["title"])
    kind = one_of("kind", table.get("kind", SEARCH), KINDS)
    seeds = whole("seeds", table.get("seeds", 25), 1)
    if kind != SEARCH:
        check_keys("the figure", table, ["title", "kind", "seeds", "problem"])
        only = Variant(kind, table["title"], kind, 1, 1, seeds=1 if kind == OVERVIEW else None)
        return Figure(
            name, table["title"], kind, seeds=seeds, problem=_problem(kind, table), variants=(only,)
        )
    check_keys("the figure", table, known, ["task", "std", "variant"])
    options = table.get("options", {})
    check_keys(f"options of {table['task']}", options, task_entry(table["task"]).options())
    metrics = table.get("metrics", ["belief_return"])
    for metric in metrics:
        lookup("metric", metric, dict.fromkeys(METRICS))
    variants = tuple(_variant(entry) for entry in table["variant"])
    names = [variant.name for variant in variants]
    for variant in variants:
        if names.count(variant.name) > 1:
            raise ValueError(f"there are two variants with the name {variant.name!r}.")
    return Figure(
        name,
        title=table["title"],
        task=table["task"],
        options=options,
        std=positive("std", table["std"]),
        draws=whole("draws", table.get("draws", 100), 1),
        seeds=seeds,
        first_seed=whole("first_seed", table.get("first_seed", 0), 0),
        metrics=tuple(metrics),
        variants=variants,
    )


def _problem(kind: str, table: Settings) -> Settings:
    from klimb.experiments import estimators, overview

    defaults = {ESTIMATORS: estimators.PROBLEM, OVERVIEW: overview.PROBLEM}[kind]
    problem = table.get("problem", {})
    check_keys("problem", problem, defaults)
    return {**defaults, **problem}


def _variant(table: Settings) -> Variant:
    known = list(Variant.__dataclass_fields__)
    name = str(table.get("name", "?"))
    where = f"variant {name!r}"
    check_keys(where, table, known, ["name", "label", "algorithm", "batch", "epochs"])
    algorithm, settings = table["algorithm"], table.get("settings", {})
    entry = lookup(f"algorithm of {where}", algorithm, ALGORITHMS | BASELINES)
    check_keys(f"settings of {where}", settings, entry.settings)
    fewest = 1 if entry.missing else make_algorithm(algorithm, **settings).fewest
    rollouts = whole(f"rollouts of {where}", table.get("rollouts", 1), 1)
    batch = whole(f"batch of {where}", table["batch"], 1)
    if batch % rollouts:
        raise ValueError(f"batch of {where} must be a multiple of its rollouts, {rollouts}, but is {batch}.")
    if batch // rollouts < fewest:
        raise ValueError(f"batch of {where} must be at least {fewest * rollouts}, but is {batch}.")
    if rollouts > 1 and algorithm in BASELINES:
        raise ValueError(f"rollouts of {where} must be 1: {algorithm} does not average over episodes.")
    colour = str(table.get("colour", algorithm))
    lookup(f"colour of {where}", colour, PALETTE)
    lookup(f"line of {where}", table.get("line", "solid"), LINES)
    seeds = table.get("seeds")
    return Variant(
        name=name,
        label=table["label"],
        algorithm=algorithm,
        batch=batch,
        epochs=whole(f"epochs of {where}", table["epochs"], 1),
        settings=settings,
        rollouts=rollouts,
        panel=table.get("panel", ""),
        seeds=None if seeds is None else whole(f"seeds of {where}", seeds, 1),
        colour=colour,
        line=table.get("line", "solid"),
        sweep={key: _values(f"sweep of {key}", entry) for key, entry in table.get("sweep", {}).items()},
    )


def _values(where: str, table: Settings) -> list[Any]:
    """Values of a range, its start included and its end not as in the paper; or a list of them."""
    check_keys(where, table, ["from", "to", "step", "values"])
    if "values" in table:
        return list(table["values"])
    check_keys(where, table, ["from", "to", "step"], ["from", "to", "step"])
    start, end, step = table["from"], table["to"], positive(f"step of {where}", table["step"])
    count = math.ceil((end - start) / step - 1e-9)
    values = [start + index * table["step"] for index in range(count)]
    return [value if isinstance(value, int) else round(value, 10) for value in values]


def sweep_of(figure: Figure, variant: Variant) -> list[Variant]:
    """The grid of the variant's sweep: a variant for each combination, named by its values.

    `batch` may be swept as well; the number of epochs then keeps the number of episodes.
    """
    if not variant.sweep:
        swept = [other.name for other in figure.variants if other.sweep]
        raise ValueError(
            f"the paper has no sweep for {variant.name!r} of {figure.name}; "
            f"it has one for: {', '.join(swept)}."
        )
    grid = []
    for values in product(*variant.sweep.values()):
        chosen = dict(zip(variant.sweep, values, strict=True))
        name = ", ".join(f"{key}={value:g}" for key, value in chosen.items())
        batch = chosen.pop("batch", variant.batch)
        epochs = max(1, variant.batch * variant.epochs // batch)
        settings = {**variant.settings, **chosen}
        if not variant.entry.missing:
            make_algorithm(variant.algorithm, **settings)
        grid.append(
            Variant(
                name, name, variant.algorithm, batch, epochs, settings, variant.rollouts, seeds=variant.seeds
            )
        )
    return grid
