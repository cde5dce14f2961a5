"""The league table: how good each search is after 100 to 5000 episodes.

    python benchmarks/samples.py                                   run what is missing, then report (hours)
    python benchmarks/samples.py --columns 'lqr*' --seeds 100 101  a part of it
    python benchmarks/samples.py --rows auto vkd-cma --workers 2
    python benchmarks/samples.py --report                          report on what there is, as Markdown
    python benchmarks/samples.py --report --publish                and put it into docs/samples.md
    python benchmarks/samples.py --list                            rows and columns
    python benchmarks/samples.py --hardship                        10,000 updates of auto with adverse returns

A row is a search with its settings, a column a task. A run is judged at every mark by 200 draws from its
search distribution (population) and by its mean vector, which are no episodes and have no noise where it was
added to a function; what counts is what was known after at most so many episodes. Runs go to
``benchmarks/results/samples/COLUMN.csv``, a line per mark, as they are done: the same command goes on where
it was stopped, and results do not depend on the number of workers.

Constants of auto were chosen on the columns of ``TUNED``, with seeds below 100; on lqr-100-0-fixed the seeds
100 to 109 had a part in it as well. The report keeps these columns apart; all seeds here are 100 or more.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import league
import numpy as np
from numpy.typing import ArrayLike
from publishing import DOCS, publish
from rich.console import Console
from rich.progress import Progress

import klimb
from klimb._validation import FloatArray
from klimb.algorithms import ALGORITHMS, BASELINES
from klimb.experiments.pool import do_all
from klimb.gaussian import diagonal
from klimb.paper import usual_settings
from klimb.tasks import episode_seeds

MARKS = (100, 250, 500, 1000, 2000, 5000)
DRAWS, MEAN_EPISODES = 200, 20
FIRST_SEED, QUICK_SEEDS, SLOW_SEEDS = 100, 10, 5
NOISE = 0.01  # standard deviation of the noise of functions, as a share of what there is to gain at the start
TARGETS = 10.0 ** np.arange(
    0.0, -6.25, -0.25
)  # gaps to the optimum of the data profile, in shares of the first
SOLVED = 1e-9  # a gap to the optimum below this share of the first counts as none: the rest is rounding
RESULTS = Path(__file__).parent / "results" / "samples"
DIFFERENCES = RESULTS.parent / "samples-differences.csv"
PAGE, PICTURE = DOCS / "samples.md", DOCS / "figures" / "data-profile.png"
FRONTIER, EARLY_AND_LATE = DOCS / "figures" / "frontier.png", (250, 5000)


@dataclass(frozen=True)
class Row:
    """An algorithm with settings of its own (else the paper's for the task) and its episodes per update."""

    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None


SMALL = {"epsilon": 1.0, "kappa": 4.0}
ROWS = {
    "auto": Row("auto"),
    "reuse": Row("dr-creps", {**SMALL, "damping": 0.1, "reuse": 20}, 10),
    "dr-creps": Row("dr-creps"),
    "dr-creps-small": Row("dr-creps", SMALL, 10),
    "creps": Row("creps"),
    "creps-small": Row("creps", SMALL, 10),
    "more": Row("more"),
    "cma-es": Row("cma-es"),
    "sep-cma": Row("sep-cma"),
    "vkd-cma": Row("vkd-cma"),
    "cr-fm-nes": Row("cr-fm-nes"),
    "ars": Row("ars"),
    "nelder-mead": Row("nelder-mead"),
    "random-search": Row("random-search"),
}


@dataclass(frozen=True)
class Column:
    """A task by its name and options; `noisy` adds noise to a function."""

    task: str
    options: dict[str, Any] = field(default_factory=dict)
    noisy: bool = False
    slow: bool = False

    def tasks(self) -> tuple[Any, Any]:
        """The task that is searched, and the one that a search is judged by: without the noise."""
        quiet: Any = klimb.make_task(self.task, **self.options)
        if not self.noisy:
            return quiet, quiet
        return klimb.make_task(self.task, **self.options, noise=NOISE * gap(quiet)), quiet

    @property
    def varies(self) -> bool:
        """Whether the same parameters return now more, now less."""
        return self.noisy or "random" in self.options.values()

    @property
    def seeds(self) -> range:
        """At least so many are wanted."""
        return range(FIRST_SEED, FIRST_SEED + (SLOW_SEEDS if self.slow else QUICK_SEEDS))


def gap(task: Any) -> float:
    """What the zero vector falls short of the optimum."""
    return float(task.optimum - task.evaluate(np.zeros((1, task.n_parameters)))[0])


def all_columns() -> dict[str, Column]:
    """Every column by its name."""
    columns: dict[str, Column] = {}
    for states in (10, 20):
        for instance in range(3):
            for start in ("fixed", "random"):
                options = {"n_states": states, "instance": instance, "start": start}
                columns[f"lqr-{states**2}-{instance}-{start}"] = Column("lqr", options, slow=states > 10)
    columns |= {
        "ship-fixed": Column("ship-steering", slow=True),
        "ship-random": Column("ship-steering", {"start": "random"}, slow=True),
        "hockey": Column("air-hockey", slow=True),
        "ball-fixed": Column("ball-stopping", slow=True),
        "ball-random": Column("ball-stopping", {"ball": "random"}, slow=True),
    }
    for name in ("sphere", "ellipsoid", "rosenbrock", "rastrigin", "ackley"):
        for n in (20, 100, 1000):
            for k in (3, 10, n):
                for rotated in (False, True):
                    for noisy in (False, True):
                        options = {"n_parameters": n, "n_effective": k, "rotated": rotated}
                        label = f"{name}-{k}of{n}" + "-rotated" * rotated + "-noisy" * noisy
                        columns[label] = Column(name, options, noisy, slow=n > 100)
    for name in ("Swimmer-v5", "Hopper-v5", "HalfCheetah-v5"):
        columns[name.lower()] = Column(f"gymnasium:{name}", {"policy": "linear"}, slow=True)
    return columns


COLUMNS = all_columns()
TUNED = tuple(
    name
    for name in COLUMNS
    if fnmatch.fnmatch(name, "lqr-*-0-*")
    or "-10of" in name
    or name in ("ship-fixed", "ball-fixed", "swimmer-v5", "rosenbrock-20of20", "sphere-100of100-rotated")
)


def kind(name: str) -> str:
    """What a column is one of, in words."""
    column = COLUMNS[name]
    if column.task.startswith("gymnasium:"):
        return "Gymnasium"
    if column.task == "lqr":
        return f"LQR, {column.options['start']} start"
    if "n_effective" in column.options:
        return f"functions of {column.options['n_parameters']}" + ", noisy" * column.noisy
    return "ship and robots"


class Timed:
    """A task that counts the time its episodes take."""

    def __init__(self, task: Any) -> None:
        self.task, self.seconds = task, 0.0

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Returns (N,) of `theta` (N, n)."""
        begin = time.process_time()
        returns: FloatArray = self.task.evaluate(theta, seed)
        self.seconds += time.process_time() - begin
        return returns


def judge(task: Any, learner: Any, seed: int, mark: int) -> tuple[float, float]:
    """Average return of the search distribution and of the mean vector; failed episodes are left out."""
    rng = np.random.default_rng([seed, mark])
    theta = np.vstack([learner.sample(rng, DRAWS), np.tile(learner.mean, (MEAN_EPISODES, 1))])
    returns = task.evaluate(theta, episode_seeds(int(rng.integers(2**60)), len(theta)))
    returns = np.where(np.isfinite(returns), returns, np.nan)
    with np.errstate(invalid="ignore"):
        parts = returns[:DRAWS], returns[DRAWS:]
    population, mean = (float(np.nanmean(part)) if np.isfinite(part).any() else math.nan for part in parts)
    return population, mean


def perform(column: str, row: str, seed: int, last: int) -> list[tuple[str, ...]]:
    """One run: a line per mark."""
    task, quiet = COLUMNS[column].tasks()
    entry, n = ROWS[row], task.n_parameters
    settings, batch = usual_settings(COLUMNS[column].task, entry.algorithm, n)
    settings |= entry.settings
    search = klimb.make_algorithm(entry.algorithm, **settings)
    batch = entry.batch or batch or search.usual_batch(n)
    marks = [mark for mark in MARKS if mark <= last]
    start = diagonal(np.zeros(n), task.initial_std)
    judged = {mark: judge(quiet, start, seed, mark) for mark in marks if mark < batch}
    timed = Timed(task)
    spent = [0.0, 0.0]  # seconds of the search itself, and of judging it

    def follow(progress: klimb.Progress) -> None:
        begin = time.process_time()
        for mark in marks:
            if progress.episodes <= mark < progress.episodes + batch:
                judged[mark] = judge(quiet, progress.optimizer, seed, mark)
        spent[1] += time.process_time() - begin

    begin = time.process_time()
    result = klimb.maximize(
        timed,
        search,
        mean=np.zeros(n),
        std=task.initial_std,
        episodes=marks[-1],
        batch=batch,
        seed=seed,
        callback=follow,
    )
    spent[0] = time.process_time() - begin - timed.seconds - spent[1]
    for mark in marks:
        if mark not in judged:  # a search that came to its end stays where it is
            judged[mark] = judge(quiet, result.optimizer, seed, mark)
    cost = f"{1e3 * spent[0] / result.episodes:.3g}"
    return [(row, str(seed), str(mark), *(f"{value:.8g}" for value in judged[mark]), cost) for mark in marks]


def gaps(columns: Iterable[str]) -> dict[str, tuple[float, float]]:
    """Optimum, and what the zero vector falls short of it, where the optimum is known."""
    found = {}
    for column in columns:
        _, quiet = COLUMNS[column].tasks()
        if quiet.optimum is not None:
            found[column] = (quiet.optimum, gap(quiet))
    return found


def hardship(updates: int, seed: int = 0) -> int:
    """Updates of auto with adverse returns of every kind; the number of failures, which ought to be 0."""
    rng = np.random.default_rng(seed)
    failures = done = 0
    while done < updates:
        n, batch = int(rng.integers(1, 30)), int(rng.integers(2, 40))
        covariance: Any = rng.choice(["full", "diagonal"])
        start, std = rng.standard_normal(n), 10.0 ** rng.uniform(-6, 6)
        optimizer = klimb.Optimizer(
            klimb.auto(covariance), mean=start, std=std, seed=int(rng.integers(2**31))
        )
        for _ in range(min(50, updates - done)):
            theta = optimizer.ask(batch)
            try:
                optimizer.tell(*adverse(rng, theta))
                belief = optimizer.belief
                sound = np.isfinite(belief.mean).all() and (belief.variances > 0).all()
                failures += not (sound and np.isfinite(belief.variances).all())
            except Exception as error:
                failures += 1
                print(f"{type(error).__name__}: {error}")
            done += 1
    return failures


def adverse(rng: np.random.Generator, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Episodes that no search likes: parameters and returns of many kinds."""
    N = len(theta)
    signal = theta @ rng.standard_normal(theta.shape[1])
    kinds: list[Callable[[], FloatArray]] = [
        lambda: np.zeros(N),
        lambda: 1e300 * (signal / max(1.0, float(np.abs(signal).max()))),
        lambda: rng.standard_normal(N) * 1e-300,
        lambda: rng.standard_cauchy(N) ** 3,
        lambda: np.where(np.arange(N) < 2, rng.standard_normal(N), np.nan),
        lambda: np.where(rng.random(N) < 0.1, -1e30, rng.standard_normal(N)),
        lambda: (rng.random(N) < 0.1).astype(np.float64),
        lambda: 1e9 + 1e-6 * rng.standard_normal(N),
        lambda: -np.square(signal),
        lambda: np.exp(np.clip(signal, -700, 700)),
    ]
    returns = kinds[rng.integers(len(kinds))]()
    if rng.random() < 0.1:  # never asked for, and far away
        theta = theta + 10.0 ** rng.uniform(0, 8) * theta.std(0) * rng.standard_normal(theta.shape[1])
    if rng.random() < 0.1:
        theta = theta[rng.integers(0, N, N)]
    return theta, returns


def chosen(patterns: Sequence[str] | None, names: Iterable[str]) -> list[str]:
    """Names that match any of the patterns, in their order."""
    names = list(names)
    if patterns is None:
        return names
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"nothing matches {pattern!r}; there are: {', '.join(names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--columns", nargs="+", metavar="PATTERN")
    parser.add_argument("--rows", nargs="+", metavar="PATTERN")
    parser.add_argument("--seeds", nargs="+", type=int, help=f"from {FIRST_SEED} on")
    parser.add_argument("--last", type=int, default=MARKS[-1], help="the last mark to run to")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--publish", action="store_true", help="write docs/samples.md, its picture and all paired differences"
    )
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--hardship", action="store_true")
    arguments = parser.parse_args()
    columns, rows = chosen(arguments.columns, COLUMNS), chosen(arguments.rows, ROWS)
    console = Console(stderr=True)
    if arguments.list:
        print("rows:", *rows, "", "columns:", *columns, sep="\n")
        return
    if arguments.hardship:
        print(f"{hardship(10_000)} failures in 10,000 updates")
        return
    if not arguments.report:
        algorithms = ALGORITHMS | BASELINES
        jobs: list[tuple[str, str, int, int]] = []
        for column in columns:
            last = str(max(mark for mark in MARKS if mark <= arguments.last))
            there = {
                (line["row"], line["seed"]) for line in league.stored(RESULTS, column) if line["mark"] == last
            }
            jobs += [
                (column, row, seed, arguments.last)
                for seed in arguments.seeds or COLUMNS[column].seeds
                for row in rows
                if (row, str(seed)) not in there and algorithms[ROWS[row].algorithm].missing is None
            ]
        jobs.sort(key=lambda job: job[2])  # a seed of every column before the next: what there is, is even
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("runs", total=len(jobs))
            for outcome in do_all(perform, jobs, arguments.workers):
                if outcome.trouble is None:
                    league.store(RESULTS, outcome.job[0], outcome.result)
                else:
                    console.print(f"{outcome.job}: {outcome.trouble}")
                progress.advance(bar)
    table = league.read(RESULTS, columns, rows, MARKS)
    known_gaps = gaps(table)
    ceilings = {column: optimum - SOLVED * first for column, (optimum, first) in known_gaps.items()}
    table = league.levelled(table, ceilings)
    # ARS never narrows what it tries: it is far off
    searches = [row for row in rows if row not in (*league.POINTS, "ars")]
    kinds = {}
    for label, noise in (("without noise", False), ("with noise", True)):
        members = {column for column in known_gaps.keys() - set(TUNED) if COLUMNS[column].varies == noise}
        known = league.complete(table, {column: known_gaps[column] for column in sorted(members)}, searches)
        if known:
            kinds[f"{label}, {len(known)} columns"] = league.standings(table, known, searches)
    report = league.report(table, TUNED, MARKS, kind)
    report += "\n\n### What is left of the first gap, not tuned on" * bool(kinds)
    for label, standing in kinds.items():
        report += f"\n\n{label.capitalize()}:\n\n{league.left_over(standing, MARKS)}"
    print(report)
    if arguments.publish:
        publish(PAGE, "make bench-samples", report)
        league.write_differences(table, MARKS, DIFFERENCES)
        halves = {
            half: league.profiles(
                table, {column: known_gaps[column] for column in known_gaps.keys() & members}, rows, TARGETS
            )
            for half, members in (
                ("not tuned on", table.keys() - set(TUNED)),
                ("tuned on", table.keys() & set(TUNED)),
            )
        }
        league.draw_profiles(halves, MARKS, PICTURE)
        league.draw_standings(kinds, MARKS, *EARLY_AND_LATE, FRONTIER)


if __name__ == "__main__":
    main()
