"""The command line: run learns a task, replay films it, check tries a task, list says what there is.

The commands of the paper's experiments are in experiments_cli.py, those that show studies in
dashboard_cli.py.

Exit codes: 0 done, 1 failed while running, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import inspect
import math
import os
import signal
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from klimb import __version__, dashboard_cli, study_cli
from klimb._command import assignments, fail, number, strict_json, to_word
from klimb._validation import FloatArray, lookup, whole
from klimb.algorithms import ALGORITHMS, BASELINES, make_algorithm
from klimb.evaluation import Collected, Workers, WorkerWarning
from klimb.experiments_cli import list_figures, register
from klimb.optimizer import Evaluates, Optimizer, Result, maximize
from klimb.optimizer import Progress as Update
from klimb.paper import EPISODES, usual_settings
from klimb.report.curves import check_format, plot_curve
from klimb.search import Search
from klimb.study import Study, StudyError
from klimb.study.file import is_study
from klimb.tasks import FAMILIES, TASKS, Task, episode_seeds, make_task
from klimb.tasks.film import Film, Watchable, check_film_format, choose_gl, save_film
from klimb.tensorboard import TensorBoard

if TYPE_CHECKING:
    from klimb.baselines import Trained

# The final belief is judged on draws and seeds of its own, the same in every run, which are no episodes.
EVALUATIONS = 200
EVALUATION_SEED = 2**32 - 1
LARGEST_PIECE = 2**24  # numbers evaluated at a time: 128 MB

app = typer.Typer(
    help="Episodic black-box policy search that finds out which parameters matter.",
    epilog="Begin with [bold]klimb run lqr --plot curve.png[/bold].",
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
app.add_typer(study_cli.app, name="study")


def main() -> None:
    """Entry point of the console script."""
    app(prog_name="klimb")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"klimb {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and leave.", is_eager=True, callback=_show_version),
    ] = False,
) -> None: ...


def _complete_task(incomplete: str) -> list[tuple[str, str]]:
    return [(name, entry.description) for name, entry in TASKS.items() if name.startswith(incomplete)]


def _complete_kind(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb run lqr --plot curve.png\n\n"
    "klimb run lqr --algorithm dr-creps --plot paper.png\n\n"
    "klimb run lqr --algorithm creps --batch 100 --set epsilon=2.0 --set kappa=5\n\n"
    "klimb run lqr --option n_states=20 --option start=random --save optimizer.npz\n\n"
    "klimb run ball-stopping --workers 2 --save arm.npz\n\n"
    "klimb run ball-stopping --cluster ray://head:10001 --timeout 60 --async\n\n"
    "klimb run gymnasium:Swimmer-v5 --policy linear --algorithm creps --batch 50\n\n"
    "klimb run lqr --algorithm vkd-cma\n\n"
    "klimb run gymnasium:Pendulum-v1 --algorithm ppo --set gamma=0.9 --episodes 1000\n\n"
    "klimb run rosenbrock --algorithm more --episodes 20000 --quiet --json"
)
def run(
    task: Annotated[
        str,
        typer.Argument(
            help="What to learn: see [bold]klimb list tasks[/bold].", autocompletion=_complete_task
        ),
    ],
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            help="See [bold]klimb list algorithms[/bold].",
            autocompletion=study_cli.complete_algorithm,
        ),
    ] = "auto",
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-e", min=2, help="How many to spend [dim](the paper's, or 5000)[/dim]."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            "-b",
            min=2,
            help="Episodes per update [dim](the paper's, or what suits the algorithm)[/dim].",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="The same seed gives the same run.")] = 0,
    std: Annotated[
        float | None,
        typer.Option(help="Standard deviation to start with, around zero [dim](the task's)[/dim]."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of the algorithm; may be repeated [dim](the paper's for the task)[/dim].",
        ),
    ] = None,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the task; may be repeated."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Short for --option policy=NAME: the policy of a Gymnasium task.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            min=1,
            help="Processes that run episodes; results are the same [dim](none; all of a cluster)[/dim].",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run episodes on a Ray cluster: [bold]auto[/bold], [bold]ray://host:port[/bold] or "
            "[bold]host:port[/bold]; results are the same.",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="End an episode that takes longer [dim](no limit)[/dim]."),
    ] = None,
    retries: Annotated[
        int, typer.Option(min=0, help="Run an episode again so often whose worker died or took too long.")
    ] = 1,
    asynchronous: Annotated[
        bool,
        typer.Option(
            "--async",
            help="Update when a batch's worth of returns is in, and use late ones in the next update. The "
            "result then depends on which episodes came first.",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the learning curve: a .png, .svg or .pdf file.")
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            help="Keep the optimizer in a file that [bold]klimb.Optimizer.load[/bold] reads; a baseline in "
            "one that [bold]klimb.baselines.load[/bold] or [bold]numpy.load[/bold] reads."
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="Keep every episode in a file; the same command goes on where it was stopped."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write TensorBoard event files to a directory.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as one JSON object, on the last line.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Learn the parameters of a task.

    Ctrl-C ends the run after the batch at hand; what was learned by then is reported and saved as usual.
    """
    try:
        task_options = assignments("--option", options)
        if policy is not None:
            task_options["policy"] = policy
        problem = make_task(task, **task_options)
        entry = lookup("algorithm", algorithm, ALGORITHMS | BASELINES)
        given, usual_batch = usual_settings(task, algorithm, problem.n_parameters)
        given |= assignments("--set", settings)
        search = make_algorithm(algorithm, **given)
        if batch is None:
            batch = usual_batch or search.usual_batch(problem.n_parameters)
        episodes = EPISODES.get(task, 5000) if episodes is None else episodes
        std = problem.initial_std if std is None else std
        # checked against the task and the budget before any episode is spent
        if isinstance(search, Search):
            for name, value in (("--batch", batch), ("--episodes", episodes)):
                whole(name, value, search.fewest)
        acts = hasattr(search, "agent")  # step by step in an environment, instead of asking and telling
        if asynchronous and not isinstance(search, Search):
            raise ValueError(f"--async is of no use to {algorithm}, which learns from whole batches.")
        elsewhere = cluster is not None or timeout is not None or asynchronous or (workers or 1) > 1
        _check_start(search, problem, std, min(batch, episodes), seed, elsewhere)
        _check_files(plot, save)
        counts_success = _counts_success(problem)
    except (ValueError, ImportError) as error:
        fail(str(error), 2)
    settled = {
        "task": task,
        "options": task_options,
        "algorithm": algorithm,
        "settings": given,
        "batch": batch,
        "std": std,
        "seed": seed,
        "episodes": episodes,
    }
    start: AbstractContextManager[Any] = nullcontext(problem)
    if elsewhere:
        try:
            count = workers or (None if cluster else 1)
            start = Workers(problem, count, cluster=cluster, retries=retries, timeout=timeout)
        except (ValueError, ImportError) as error:
            fail(str(error), 2)
        except RuntimeError as error:
            fail(str(error), 1)
    with study_cli.sorry():
        board = None if tensorboard is None else TensorBoard(tensorboard)
        kept = None if study is None else study_cli.open_run(study, settled, search, problem)

    record = Record(episodes)
    begin = time.perf_counter()
    try:
        with (
            kept or nullcontext(),
            board or nullcontext(),
            start as evaluated,
            _plain_warnings(),
            _progress_bar(record, shown=not quiet),
            _gentle_interrupt(record),
        ):
            follow = record.follow if board is None else record.also(board)
            watched = record.watch(evaluated) if counts_success else evaluated
            budget: Any = {"episodes": episodes, "batch": batch, "seed": seed, "callback": follow}
            result: Result | Trained
            if kept is not None:
                standing = kept.status()
                record.evaluated = standing.done + standing.failed
                if acts and record.evaluated and not quiet:
                    typer.echo(
                        f"{algorithm} cannot be taken up midway: it learns its {record.evaluated} episodes "
                        f"in {study} again, which must come out the same, and goes on from there.",
                        err=True,
                    )
                if not (acts or asynchronous):
                    kept.judge_mean(evaluated)  # of an update after which the run was killed
                    follow = record.also(lambda update: kept.judge_mean(evaluated), follow)
                result = kept.run(
                    problem if acts else watched,
                    episodes=episodes,
                    callback=follow,
                    asynchronous=asynchronous,
                )
                record.sizes = kept.effective_sample_sizes()
            elif acts:
                result = _train(problem, search, **budget)
            else:
                result = maximize(
                    watched,
                    search,
                    mean=np.zeros(problem.n_parameters),
                    std=std,
                    asynchronous=asynchronous,
                    **budget,
                )
    except (KeyboardInterrupt, Exception) as error:
        _rescue(error, record, save)
    seconds = time.perf_counter() - begin

    troubles = []
    if save is not None:
        troubles += _attempt("save the optimizer", lambda: result.optimizer.save(save))
    if plot is not None:
        title = f"{task}, {algorithm}, seed {seed}"
        troubles += _attempt(
            "draw the curve", lambda: plot_curve(result.curve, plot, title=title, optimum=problem.optimum)
        )
    summary = {
        "klimb": __version__,
        "task": task,
        "options": task_options,
        "n_parameters": result.mean.size,
        "algorithm": algorithm,
        "settings": entry.settings | given,
        "batch": batch,
        "std": None if acts else std,
        "seed": seed,
        "episodes": result.episodes,
        "updates": result.optimizer.iteration,
        "interrupted": record.stop,
        "ended": bool(getattr(result.optimizer, "ended", False)),
        "attempt": getattr(result.optimizer, "attempt", 0),
        **_judge(problem, result, counts_success),
        "first_success": record.first_success,
        "effective_sample_size": statistics.median(record.sizes) if record.sizes else None,
        "seconds": seconds,
    }
    if not quiet:
        note = _weight_note(record.sizes, search, batch)
        if summary["ended"]:
            note = f"{algorithm} has come to its end and spent no more episodes: it has nothing left to try."
        elif summary["attempt"]:
            times = "once" if summary["attempt"] == 1 else f"{summary['attempt']} times"
            note = f"{algorithm} has looked around and begun anew {times}: this is the best that it found."
        _print_summary(summary, note, plot, save)
    if as_json:
        typer.echo(strict_json(summary))
    for trouble in troubles:
        typer.echo(f"klimb: {trouble}", err=True)
    if record.stop:
        typer.echo(f"klimb: stopped by Ctrl-C after {summary['episodes']} of {episodes} episodes.", err=True)
        if study is not None:
            typer.echo(f"To go on: klimb study resume {study}", err=True)
        raise typer.Exit(130)
    raise typer.Exit(1 if troubles else 0)


@study_cli.app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb run lqr --episodes 5000 --study lqr.db\n\n"
    "klimb study resume lqr.db\n\n"
    "klimb study resume lqr.db --episodes 10000\n\n"
    "klimb study resume lqr.db --cluster ray://head:10001"
)
def resume(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What [bold]klimb run --study[/bold] made.")],
    episodes: Annotated[
        int | None, typer.Option("--episodes", "-e", min=2, help="How many in all [dim](as before)[/dim].")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", "-w", min=1, help="As for klimb run.")] = None,
    cluster: Annotated[str | None, typer.Option(metavar="ADDRESS", help="As for klimb run.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="As for klimb run.")] = None,
    retries: Annotated[int, typer.Option(min=0, help="As for klimb run.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="As for klimb run.")] = None,
    save: Annotated[Path | None, typer.Option(help="As for klimb run.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As for klimb run.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="As for klimb run.")] = False,
) -> None:
    """Go on with a simulated run where it stopped."""
    with study_cli.sorry():
        with Study(file) as study:
            settled = study_cli.settled_run(study)
        for name in ("options", "settings"):
            settled[name] = [f"{key}={to_word(value)}" for key, value in settled[name].items()]
    settled["episodes"] = episodes or settled["episodes"]
    run(
        **settled,
        workers=workers,
        cluster=cluster,
        timeout=timeout,
        retries=retries,
        plot=plot,
        save=save,
        study=file,
        as_json=as_json,
        quiet=quiet,
    )


@app.command(
    "list",
    epilog="[bold]Examples[/bold]\n\n"
    "klimb list tasks\n\n"
    "klimb list algorithms\n\n"
    "klimb list algorithms --json",
)
def list_(
    kind: Annotated[
        str,
        typer.Argument(
            help="[bold]tasks[/bold], [bold]algorithms[/bold] or [bold]figures[/bold].",
            autocompletion=_complete_kind,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
) -> None:
    """Say what there is: names, what they are, and their settings with the defaults."""
    try:
        entries = lookup("kind of list", kind, KINDS)()
    except ValueError as error:
        fail(str(error), 2)
    if as_json:
        typer.echo(strict_json(entries))
        return
    table = Table(box=None, padding=(0, 2, 1, 0), show_header=False)
    for entry in entries:
        lines = Text(entry["description"])
        choices = entry.get("settings", entry.get("options"))
        if choices is None:
            lines.append(f"\n{entry['missing']}", style="yellow")
        else:
            lines.append(
                "\n" + "  ".join(f"{name}={to_word(value)}" for name, value in choices.items()), "cyan"
            )
        if "reference" in entry:
            batch = entry["batch"] or "4 + 3 log n"
            lines.append(f"\n{entry['reference']}; {batch} episodes per update", style="dim")
        if entry.get("extra"):
            lines.append(f"\npip install 'klimb[{entry['extra']}]'", style="dim")
            if entry["missing"]:
                lines.append(f"\nnot installed: {entry['missing']}", style="yellow")
        table.add_row(Text(entry["name"], style="bold", no_wrap=True), lines)
    Console().print(table)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb run ball-stopping --save arm.npz\n\n"
    "klimb replay ball-stopping arm.npz --output arm.gif\n\n"
    "klimb replay ball-stopping arm.db --output arm.gif\n\n"
    "klimb replay ship-steering ship.npz --output way.png"
)
def replay(
    task: Annotated[str, typer.Argument(help="The task that was learned.", autocompletion=_complete_task)],
    optimizer: Annotated[Path, typer.Argument(help="What [bold]klimb run --save[/bold] wrote, or a study.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .gif or .mp4 film, or a .png strip of stills.")
    ],
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Seed of the episode.")] = 0,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the task; may be repeated."),
    ] = None,
    width: Annotated[int | None, typer.Option(min=16, max=4096, help="Of the picture, in pixels.")] = None,
    height: Annotated[int | None, typer.Option(min=16, max=4096, help="Of the picture, in pixels.")] = None,
) -> None:
    """Film an episode of what was learned: the mean of the belief."""
    choose_gl()
    try:
        check_film_format(output)
        _check_files(None, output)
        problem = make_task(task, **assignments("--option", options))
        if not isinstance(problem, Watchable):
            raise ValueError(
                f"there is nothing to see of {task}; ship-steering, air-hockey, ball-stopping and "
                "gymnasium:ID can be replayed."
            )
        learned = _learned_mean(optimizer)
        if learned.size != problem.n_parameters:
            raise ValueError(
                f"{optimizer} holds {learned.size} parameters, but {task} has "
                f"{problem.n_parameters}: pass the options that it was learned with."
            )
        size = {name: value for name, value in (("width", width), ("height", height)) if value is not None}
    except StudyError as error:
        fail(str(error), 1)
    except (ValueError, ImportError, OSError) as error:
        fail(str(error), 2)
    try:
        film = problem.film(learned, seed, **size)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("frames"), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            shown = bar.track(film.frames, total=film.count)
            save_film(Film(iter(shown), film.count, film.rate), output)
    except (RuntimeError, OSError) as error:
        fail(str(error), 1)
    typer.echo(f"{film.count} frames in {output}")


def _learned_mean(path: Path) -> FloatArray:
    """The parameters to use, from a study or a file of an optimizer or a baseline."""
    if is_study(path):
        with Study(path) as study:
            return study.status().mean
    try:
        return Optimizer.load(path).mean
    except ValueError as error:
        from klimb.baselines import load

        try:
            return load(path).mean
        except ValueError:
            raise error from None


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb check my_module:MyTask\n\n"
    "klimb check my_module:make_task --option n_joints=7 --json"
)
def check(
    place: Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A task, or what makes one.")],
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of what makes it; may be repeated."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="Episodes per batch; about ten batches are run.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON array.")] = False,
) -> None:
    """Try whether a task of your own keeps what klimb relies on; exit code 1 if it does not."""
    from klimb.check import check_task, load_task

    try:
        task = load_task(place, **assignments("--option", options))
    except (ValueError, ImportError) as error:
        fail(str(error), 2)
    findings = check_task(task, episodes=episodes)
    if as_json:
        typer.echo(strict_json([finding._asdict() for finding in findings]))
    else:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        styles = {"ok": "green", "warning": "yellow", "error": "bold red"}
        for finding in findings:
            style = styles[finding.status]
            table.add_row(Text(finding.status, style), Text(finding.name, "bold"), Text(finding.detail))
        Console().print(table)
    raise typer.Exit(1 if any(finding.status == "error" for finding in findings) else 0)


def _tasks() -> list[dict[str, Any]]:
    """What ``klimb list tasks`` shows; a task whose simulator is not installed is listed nevertheless."""
    entries = []
    families = {f"{name}:ID": entry for name, entry in FAMILIES.items()}
    for name, entry in (TASKS | families).items():
        row: dict[str, Any] = {"name": name, "description": entry.description}
        try:
            required = inspect.Parameter.empty
            row["options"] = {
                option: "required" if default is required else default
                for option, default in entry.options().items()
            }
        except ImportError as error:
            row["missing"] = f"not installed: {error}"
        entries.append(row)
    return entries


def _algorithms() -> list[dict[str, Any]]:
    """What ``klimb list algorithms`` shows."""
    return [
        {
            "name": name,
            "description": entry.summary,
            "settings": entry.settings,
            "batch": entry.batch,
            "reference": entry.reference,
            "extra": entry.extra,
            "missing": entry.missing,
        }
        for name, entry in (ALGORITHMS | BASELINES).items()
    ]


KINDS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "tasks": _tasks,
    "algorithms": _algorithms,
    "figures": list_figures,
}
register(app)
dashboard_cli.register(app)


@dataclass
class Record:
    """What the command line remembers of a run under way.

    Attributes
    ----------
    episodes
        How many are planned.
    sizes
        Effective sample size of every update that has one.
    last
        The latest update, None before the first.
    stop
        Whether the user asked to stop.
    evaluated, first_success, success_rate
        Episodes run, the number of the first that succeeded, and the share of the latest batch that did; None
        where the task does not tell.
    show
        Called after every update.
    """

    episodes: int
    sizes: list[float] = field(default_factory=list)
    last: Update | None = None
    stop: bool = False
    show: Callable[[Update], None] = lambda update: None
    evaluated: int = 0
    first_success: int | None = None
    success_rate: float | None = None

    def watch(self, task: Any) -> Evaluates:
        """The task, with an eye on the successes of its episodes."""
        record = self

        class Watched:
            count = getattr(task, "count", 1)

            def evaluate(self, theta: FloatArray, seed: int) -> FloatArray:
                returns, success = _with_success(task, theta, seed)
                record.note(success)
                return returns

            def submit(self, theta: FloatArray, seed: Any) -> Any:
                return task.submit(theta, seed, return_success=True)

            def collect(self, count: int) -> Collected:
                collected: Collected = task.collect(count)
                if collected.success is not None:
                    record.note(collected.success)
                return collected

            def abandon(self) -> None:
                task.abandon()

        return Watched()

    def note(self, success: NDArray[np.bool_]) -> None:
        """Take in which of some more episodes succeeded."""
        if self.first_success is None and success.any():
            self.first_success = self.evaluated + int(np.argmax(success)) + 1
        self.success_rate = float(success.mean())
        self.evaluated += len(success)

    def follow(self, update: Update) -> bool:
        """Take in an update; the callback of maximize, so True ends the search."""
        self.last = update
        if update.success is not None:
            if self.first_success is None and update.success.any():
                self.first_success = (
                    update.episodes - update.success.size + int(np.argmax(update.success)) + 1
                )
            self.success_rate = float(update.success.mean())
        if update.info.effective_sample_size is not None:
            self.sizes.append(update.info.effective_sample_size)
        self.show(update)
        return self.stop

    def also(
        self, callback: Callable[[Update], object], follow: Callable[[Update], bool] | None = None
    ) -> Callable[[Update], bool]:
        """Call another callback before :meth:`follow`, or before what stands in for it."""

        def both(update: Update) -> bool:
            callback(update)
            return (follow or self.follow)(update)

        return both


@contextmanager
def _progress_bar(record: Record, shown: bool) -> Iterator[None]:
    """Show on stderr, if that is a terminal, how far the run is."""
    console = Console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  {task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not (shown and console.is_terminal)) as bar:
        place = bar.add_task("", total=record.episodes)

        def show(update: Update) -> None:
            good = update.returns[np.isfinite(update.returns)]
            mean = number(good.mean()) if good.size else "none"
            text = f"mean return {mean}  best {number(update.best_return)}"
            if record.success_rate is not None:
                text += f"  success {record.success_rate:.0%}"
            bar.update(place, completed=update.episodes, description=text)

        record.show = show
        yield


@contextmanager
def _gentle_interrupt(record: Record) -> Iterator[None]:
    """Let the first Ctrl-C end the run after the batch at hand; the second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        record.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        typer.echo("\nStopping after this batch; Ctrl-C again stops at once.", err=True)

    before = signal.signal(signal.SIGINT, ask_to_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Say what happens to workers in a line each, every time."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=WorkerWarning)
        show = warnings.showwarning

        def say(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if issubclass(category, WorkerWarning):
                typer.echo(f"klimb: {message}", err=True)
            else:
                show(message, category, *place, **more)

        warnings.showwarning = say
        yield


def _counts_success(task: Task) -> bool:
    """Whether the task says which episodes succeeded: an episode of it tells, which counts for nothing."""
    if "return_success" not in inspect.signature(task.evaluate).parameters:
        return False
    try:
        _with_success(task, np.zeros((1, task.n_parameters)), 0)
    except ValueError:  # some environments do not say
        return False
    return True


def _with_success(
    task: Task, theta: FloatArray, seed: int | NDArray[np.uint64]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    evaluate: Any = task.evaluate
    returns, success = evaluate(theta, seed, return_success=True)
    return returns, success


def _rescue(error: BaseException, record: Record, save: Path | None) -> NoReturn:
    """End a run that broke off: keep what was learned, say what happened."""
    done = 0 if record.last is None else record.last.episodes
    interrupted = isinstance(error, KeyboardInterrupt)
    what = "stopped by Ctrl-C" if interrupted else f"failed: {error or type(error).__name__}\nIt ended"
    typer.echo(f"klimb: {what} after {done} of {record.episodes} episodes.", err=True)
    if save is not None and record.last is not None:
        optimizer = record.last.optimizer
        troubles = _attempt("save the optimizer", lambda: optimizer.save(save))
        typer.echo(troubles[0] if troubles else f"What was learned by then is in {save}.", err=True)
    if not (interrupted or isinstance(error, (ValueError, RuntimeError, MemoryError))):
        raise error  # a defect: its traceback is wanted
    raise typer.Exit(130 if interrupted else 1)


def _check_start(search: Any, task: Task, std: float, batch: int, seed: int, elsewhere: bool) -> None:
    """Raise a ValueError, or an ImportError, if the algorithm cannot do the task."""
    if hasattr(search, "agent"):
        from klimb.baselines.stepping import make_arena

        make_arena(task, search.name, 1)
        search.check(batch)
        if elsewhere:
            raise ValueError(
                f"--workers is of no use to {search.name}, which acts in this process; nor are --cluster and "
                "--timeout."
            )
    elif isinstance(search, Search):
        Optimizer(search, mean=np.zeros(task.n_parameters), std=std, seed=seed)
    else:
        search.start(mean=np.zeros(task.n_parameters), std=std, batch=batch, seed=seed)


def _train(task: Task, algorithm: Any, **budget: Any) -> Trained:
    from klimb.baselines import train

    return train(task, algorithm, **budget)


def _judge(task: Task, result: Result | Trained, counts_success: bool) -> dict[str, float | int | None]:
    """The return of what was learned, apart from the episodes it was learned from."""
    if isinstance(result, Result):
        sample, mean, rng = result.optimizer.sample, result.mean, np.random.default_rng(EVALUATION_SEED)
        mean_return, success_rate = _average(task, lambda count: sample(rng, count), counts_success)
        mean_policy_return, mean_policy_success = _average(
            task, lambda count: np.broadcast_to(mean, (count, mean.size)), counts_success
        )
    else:
        mean_return, success_rate = _average_steps(result, deterministic=False)
        mean_policy_return, mean_policy_success = _average_steps(result, deterministic=True)
    return {
        "mean_return": mean_return,
        "mean_policy_return": mean_policy_return,
        "success_rate": success_rate,
        "mean_policy_success_rate": mean_policy_success,
        "best_return": result.best_return,
        "optimum": task.optimum,
        "n_failed": result.n_failed,
    }


def _average(
    task: Task, draw: Callable[[int], FloatArray], counts_success: bool
) -> tuple[float | None, float | None]:
    """Average return and success rate of EVALUATIONS parameter vectors; None if there is none."""
    seeds = episode_seeds(EVALUATION_SEED, EVALUATIONS)
    pieces = math.ceil(EVALUATIONS * task.n_parameters / LARGEST_PIECE)
    returns: list[FloatArray] = []
    successes: list[NDArray[np.bool_]] = []
    for piece in np.array_split(seeds, min(pieces, EVALUATIONS)):
        if counts_success:
            values, success = _with_success(task, draw(piece.size), piece)
            successes.append(success)
        else:
            values = task.evaluate(draw(piece.size), piece)
        returns.append(values)
    good = np.concatenate(returns)
    good = good[np.isfinite(good)]
    mean_return = float(good.mean()) if good.size else None
    return mean_return, float(np.concatenate(successes).mean()) if successes else None


def _average_steps(result: Trained, *, deterministic: bool) -> tuple[float | None, float | None]:
    """Average return and success rate of EVALUATIONS episodes of a policy that acts step by step."""
    seeds = episode_seeds(EVALUATION_SEED, EVALUATIONS)
    returns, success = result.evaluate(seeds, deterministic=deterministic)
    good = returns[np.isfinite(returns)]
    mean_return = float(good.mean()) if good.size else None
    return mean_return, float(success.mean()) if result.arena.tells_success else None


def _weight_note(sizes: list[float], search: Search, batch: int) -> str | None:
    """What to know where the updates rest on hardly more than one episode each."""
    if not sizes or statistics.median(sizes) >= 2:
        return None
    note = "In most updates nearly all the weight lies on the best episode of the batch. "
    epsilon, beta = getattr(search.update, "epsilon", None), getattr(search.update, "beta", None)
    if epsilon is not None and epsilon >= math.log(batch):
        note += (
            f"epsilon = {epsilon:g} is at least log N = log {batch} = {math.log(batch):.2f}, which makes the "
            f"weights one-hot. A smaller epsilon"
        )
        if math.exp(min(epsilon, 20)) < 10_000:
            note += f", or a batch of more than {math.floor(math.exp(epsilon))},"
        return note + " lets more episodes count."
    if epsilon is not None:
        return note + f"A smaller epsilon than {epsilon:g} lets more episodes count."
    return note + ("" if beta is None else f"A smaller beta than {beta:g} lets more episodes count.")


def _print_summary(
    summary: Mapping[str, Any], note: str | None, plot: Path | None, save: Path | None
) -> None:
    """Write the end of a run for people."""
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{summary['task']}[/bold] ({summary['n_parameters']} parameters), "
        f"[bold]{summary['algorithm']}[/bold]: {summary['episodes']} episodes in {summary['updates']} "
        f"updates, {summary['seconds']:.1f} s"
    )
    table = Table(box=None, padding=(0, 2), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    # a policy that acts step by step has no std to start with
    kinds = ("of the random policy", "of its mean")
    under, of_mean = kinds if summary["std"] is None else ("under the belief", "of the mean policy")
    rows = {
        f"mean return {under}": summary["mean_return"],
        f"return {of_mean}": summary["mean_policy_return"],
        "best episode": summary["best_return"],
        "optimum": summary["optimum"],
    }
    for name, value in rows.items():
        table.add_row(name, "not known" if value is None else number(value))
    if summary["success_rate"] is not None:
        first = summary["first_success"]
        table.add_row(f"success rate {under}", f"{summary['success_rate']:.1%}")
        table.add_row(f"success rate {of_mean}", f"{summary['mean_policy_success_rate']:.1%}")
        table.add_row("first success", "none" if first is None else f"episode {first}")
    table.add_row("failed episodes", str(summary["n_failed"]))
    console.print(table)
    if plot is not None and plot.exists():
        console.print(f"Learning curve: {escape(str(plot))}")
    if save is not None and save.exists():
        console.print(f"Optimizer: {escape(str(save))}")
    if note is not None:
        console.print(f"[yellow]Note:[/yellow] {note}")


def _check_files(plot: Path | None, save: Path | None) -> None:
    """Raise a ValueError if a file could not be written at the end."""
    if plot is not None:
        check_format(plot)
    if plot is not None and save is not None and plot.absolute() == save.absolute():
        raise ValueError(f"--plot and --save must be two files, but both are {plot}.")
    for option, path in {"--plot": plot, "--save": save}.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{option} must be a file, but {path} is a directory.")
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise ValueError(f"{option} {path} cannot be written: {error.strerror}.") from None
        if path.exists() and not os.access(path, os.W_OK):
            raise ValueError(f"{option} {path} cannot be written: it is read-only.")


def _attempt(what: str, action: Callable[[], object]) -> list[str]:
    """Do it; a list of what went wrong with the file."""
    try:
        action()
    except OSError as error:
        return [f"could not {what}: {error}."]
    return []
