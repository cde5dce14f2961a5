"""A figure from its file to its picture: find what is done, do the rest, write the table, draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray
from klimb.experiments.estimators import ESTIMATORS as ESTIMATOR_NAMES
from klimb.experiments.plan import (
    ESTIMATORS,
    OVERVIEW,
    SEARCH,
    Figure,
    Settings,
    Variant,
    figure_names,
    hash_of,
    load_figure,
)
from klimb.experiments.pool import do_all
from klimb.experiments.run import Table, perform
from klimb.experiments.store import (
    DamagedError,
    Entry,
    Key,
    check_current,
    load_run,
    read_results,
    results_path,
    save_run,
    write_results,
)
from klimb.report.figures import Curve, Panel, draw_curves, draw_estimators, draw_overview
from klimb.tasks import make_task

# Seconds per episode and per update, roughly: the progress bar weighs runs by them.
SECONDS = {
    "lqr": (7e-6, 4e-3),
    "ship-steering": (4e-5, 1.5e-2),
    "air-hockey": (6e-3, 3e-3),
    "ball-stopping": (4e-3, 3e-3),
}
METRIC_NAMES = {
    "belief_return": "return under the belief",
    "mean_policy_return": "return of the mean policy",
    "success_rate": "success rate",
    "precision": "precision",
    "recall": "recall",
}


class Line(NamedTuple):
    """A variant with what identifies its runs."""

    variant: Variant
    settings: Settings
    hash: str
    seeds: range


@dataclass
class Plan:
    """What is wanted of a figure, and what was there before."""

    figure: Figure
    lines: list[Line]
    missing: list[str] = field(default_factory=list)
    """Variants that cannot be run here, and what they need."""
    before: list[Entry] = field(default_factory=list)
    """Runs in its results file."""


@dataclass
class Report:
    """What came of it."""

    done: int = 0
    """Runs that were done now."""
    known: int = 0
    """Runs that had been done before."""
    troubles: list[str] = field(default_factory=list)
    """Runs that failed, in words."""
    files: list[Path] = field(default_factory=list)
    """Results files and pictures."""


class Watcher:
    """Is told how far it is; the command line draws a bar from it."""

    def begin(self, runs: int, cost: float) -> None:
        """So many runs are to be done, which will cost about so much altogether."""

    def advance(self, cost: float, trouble: str | None) -> None:
        """A run is done, or failed for a reason."""

    def say(self, message: str) -> None:
        """Something that the user should know."""


def make_plan(
    figure: Figure,
    results: Path,
    seeds: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """Resolve the variants of a figure; raises a ValueError for unknown names and results that do not fit."""
    for name in (*only, *skip):
        figure.variant(name)
    plan = Plan(figure, [])
    for variant in figure.variants:
        if (only and variant.name not in only) or variant.name in skip:
            continue
        if figure.kind == SEARCH and variant.entry.missing:
            plan.missing.append(f"{variant.name} {variant.entry.missing}")
            continue
        settings = figure.resolve(variant)
        plan.lines.append(Line(variant, settings, hash_of(settings), figure.seeds_of(variant, seeds)))
    path = results_path(results, figure.name)
    if path.exists():
        plan.before = read_results(path)
        check_current(figure, path, plan.before)
    return plan


def cost_of(settings: Settings) -> float:
    """Seconds that a run takes, roughly."""
    if "task" not in settings:
        return 0.1
    episode, update = SECONDS.get(settings["task"], (1e-4, 5e-3))
    if settings["settings"].get("effectiveness") == "mutual-information":
        update *= 2
    return float(settings["epochs"] * ((settings["batch"] + settings["draws"] + 1) * episode + update))


def reproduce(
    plans: Sequence[Plan], results: Path, workers: int, watcher: Watcher | None = None
) -> tuple[Report, dict[str, list[Entry]]]:
    """Do what is missing of several figures, and write their results files.

    Finished runs are kept one by one, so that it can be stopped at any time and goes on from there.

    Returns
    -------
    report, entries
        What came of it, and for every figure all its runs.
    """
    watcher = watcher or Watcher()
    report = Report()
    for plan in plans:
        if plan.missing:
            watcher.say(f"{plan.figure.name}: left out: {'; '.join(plan.missing)}.")
    wanted: dict[Key, Settings] = {}
    # seed by seed, so that what is there when it is stopped is balanced
    lines = [line for plan in plans for line in plan.lines]
    for place in range(max((len(line.seeds) for line in lines), default=0)):
        for line in lines:
            if place < len(line.seeds):
                wanted.setdefault((line.hash, line.seeds[place]), line.settings)
    found = _find(wanted, plans, results, watcher)
    report.known = len(found)
    jobs = [(settings, key[1]) for key, settings in wanted.items() if key not in found]
    watcher.begin(len(jobs), sum(cost_of(settings) for settings, _ in jobs))
    names = {line.hash: (plan.figure.name, line.variant.name) for plan in plans for line in plan.lines}
    for outcome in do_all(perform, jobs, min(workers, max(1, len(jobs)))):
        settings, seed = outcome.job
        trouble = outcome.trouble
        if trouble is None:
            table = Table(*outcome.result)
            save_run(results, table)
            found[hash_of(settings), seed] = table
            report.done += 1
        else:
            figure, variant = names[hash_of(settings)]
            trouble = f"{variant} of {figure}, seed {seed}: {trouble}"
            report.troubles.append(trouble)
        watcher.advance(cost_of(settings), trouble)
    entries = {}
    for plan in plans:
        entries[plan.figure.name] = _collect(plan, found)
        if entries[plan.figure.name]:
            path = results_path(results, plan.figure.name)
            write_results(path, plan.figure.name, entries[plan.figure.name])
            report.files.append(path)
    return report, entries


def _find(
    wanted: dict[Key, Settings], plans: Sequence[Plan], results: Path, watcher: Watcher
) -> dict[Key, Table]:
    """The wanted runs that are done: in the figures' own files, in .runs, in the files of other figures."""
    found = {(entry.hash, entry.table.seed): entry.table for plan in plans for entry in plan.before}
    found = {key: table for key, table in found.items() if key in wanted}
    for key, settings in wanted.items():
        if key not in found:
            try:
                table = load_run(results, settings, key[1])
            except DamagedError as error:
                watcher.say(f"{error} That run is done again.")
                continue
            if table is not None:
                found[key] = table
    hashes = {key[0] for key in wanted if key not in found}
    own = {plan.figure.name for plan in plans}
    for path in sorted(results.glob("*.csv.gz")) if hashes else []:
        if path.name.removesuffix(".csv.gz") in own:
            continue
        try:
            entries = read_results(path)
        except DamagedError as error:
            watcher.say(str(error))
            continue
        for entry in entries:
            key = entry.hash, entry.table.seed
            if key in wanted and key not in found:
                found[key] = entry.table
    return found


def _collect(plan: Plan, found: dict[Key, Table]) -> list[Entry]:
    """All runs of a figure: those from before and those that are wanted now."""
    # names and labels may have changed since; what they stand for has not
    names = {variant.name: variant for variant in plan.figure.variants}
    runs = {
        (entry.variant, entry.table.seed): entry._replace(label=names[entry.variant].label)
        for entry in plan.before
    }
    for line in plan.lines:
        for seed in line.seeds:
            table = found.get((line.hash, seed))
            if table is not None:
                variant = line.variant
                runs[variant.name, seed] = Entry(variant.name, variant.label, line.hash, table)
    return list(runs.values())


# ------------------------------------------------------------------------------------------------- pictures


def column(entries: Sequence[Entry], variant: str, name: str) -> tuple[FloatArray, FloatArray]:
    """Episodes (k,) and a column (seeds, k) of a variant; epochs in which it has no value are left out.

    A run that ended early keeps its last value.
    """
    runs = [entry for entry in entries if entry.variant == variant]
    if not runs:
        return np.empty(0), np.empty((0, 0))
    longest = max(runs, key=lambda entry: len(entry.table.rows))
    episodes = longest.numbers("episodes")
    values = np.full((len(runs), episodes.size), np.nan)
    for row, entry in zip(values, runs, strict=True):
        series = entry.numbers(name)
        row[: series.size] = series
        row[series.size :] = series[-1]
    there = ~np.isnan(values).all(axis=0)
    return episodes[there], values[:, there]


def draw(figure: Figure, entries: Sequence[Entry], paths: Sequence[Path]) -> None:
    """Draw a figure from its runs into files."""
    if figure.kind == ESTIMATORS:
        draw_estimators(_estimates(entries), paths, title=figure.title)
    elif figure.kind == OVERVIEW:
        draw_overview(_matrices(entries[0]), paths, title=figure.title)
    else:
        panels = _panels(figure, entries)
        draw_curves(panels, paths, title=figure.title)


def _panels(figure: Figure, entries: Sequence[Entry]) -> list[Panel]:
    titles = list(dict.fromkeys(variant.panel for variant in figure.variants if variant.panel)) or [""]
    optimum = make_task(figure.task, **figure.options).optimum
    seeds = {
        variant.name: len({e.table.seed for e in entries if e.variant == variant.name})
        for variant in figure.variants
    }
    most = max(seeds.values())
    panels = []
    for metric in figure.metrics:
        for title in titles:
            curves = []
            for variant in figure.variants:
                if variant.panel not in ("", title) or not seeds[variant.name]:
                    continue
                label = variant.label
                if seeds[variant.name] < most:
                    label += f" ({seeds[variant.name]} seeds)"
                episodes, values = column(entries, variant.name, metric)
                curves.append(Curve(label, variant.colour, variant.line, episodes, values))
            share = metric in ("success_rate", "precision", "recall")
            line = optimum if metric in ("belief_return", "mean_policy_return") else None
            panels.append(Panel(title, METRIC_NAMES[metric], curves, line, share))
    return panels


def _estimates(entries: Sequence[Entry]) -> dict[int, dict[str, tuple[FloatArray, FloatArray, float]]]:
    """Estimates by seed and estimator: samples (k,), estimates (k,) and the analytic value."""
    table: dict[int, dict[str, tuple[FloatArray, FloatArray, float]]] = {}
    for entry in sorted(entries, key=lambda entry: entry.table.seed):
        names = np.array(entry.column("estimator"))
        samples, estimates, analytic = (entry.numbers(name) for name in ("samples", "estimate", "analytic"))
        table[entry.table.seed] = {
            name: (samples[names == name], estimates[names == name], float(analytic[0]))
            for name in ESTIMATOR_NAMES
        }
    return table


def _matrices(entry: Entry) -> dict[str, FloatArray]:
    """The matrices of the overview by name."""
    names = np.array(entry.column("matrix"))
    rows, columns, values = (entry.numbers(name) for name in ("row", "column", "value"))
    matrices = {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        matrix = np.zeros((int(rows[mine].max()) + 1, int(columns[mine].max()) + 1))
        matrix[rows[mine].astype(int), columns[mine].astype(int)] = values[mine]
        matrices[name] = matrix
    return matrices


def load_all() -> list[Figure]:
    """All figures of the paper."""
    return [load_figure(name) for name in figure_names()]
