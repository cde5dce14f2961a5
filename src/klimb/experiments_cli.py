"""The commands of the paper's experiments: reproduce, claims and sweep."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from klimb._command import fail, strict_json
from klimb._processes import available_cores
from klimb._validation import lookup
from klimb.experiments.plan import figure_names, load_figure
from klimb.experiments.reproduce import Plan, Report, Watcher

if TYPE_CHECKING:
    from klimb.experiments.plan import Figure
    from klimb.experiments.store import Entry

RESULTS = Path("results")
PICTURES = (".png", ".svg")
SHOWN = 10  # points of a sweep

STYLES = {"holds": "green", "does not hold": "bold red", "undecided": "yellow", "no data": "dim"}


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    examples = "[bold]Examples[/bold]\n\n"
    app.command(
        epilog=examples + "klimb reproduce lqr-full --seeds 3\n\n"
        "klimb reproduce lqr-diag lqr-full precision-recall\n\n"
        "klimb reproduce all --skip ppo --skip trpo"
    )(reproduce)
    app.command(epilog=examples + "klimb claims\n\nklimb claims --json")(claims)
    app.command(epilog=examples + "klimb sweep lqr-full dr-creps --seeds 3")(sweep)


def list_figures() -> list[dict[str, Any]]:
    """What ``klimb list figures`` shows."""
    entries = []
    for name in figure_names():
        figure = load_figure(name)
        names = ", ".join(variant.name for variant in figure.variants)
        entries.append({"name": name, "description": figure.title, "options": {"variants": names}})
    return entries


def _complete_figure(incomplete: str) -> list[str]:
    return [name for name in (*figure_names(), "all") if name.startswith(incomplete)]


ResultsOption = Annotated[
    Path, typer.Option("--results", help="Directory of the results files.", file_okay=False)
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", "-w", min=1, help="Processes [dim](all cores)[/dim].")
]


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FIGURE...",
            help="See [bold]klimb list figures[/bold]; or all; or a TOML file of your own.",
            autocompletion=_complete_figure,
        ),
    ],
    seeds: Annotated[
        int | None, typer.Option("--seeds", "-s", min=1, help="Runs per variant [dim](the paper's 25)[/dim].")
    ] = None,
    workers: WorkersOption = None,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="VARIANT", help="No other variant; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="VARIANT", help="Not this one; may be repeated.")
    ] = None,
    results: ResultsOption = RESULTS,
    figures: Annotated[
        Path | None,
        typer.Option(help="Directory of the pictures [dim](figures in that of the results)[/dim]."),
    ] = None,
    draw: Annotated[bool, typer.Option("--draw/--no-draw", help="Whether to draw the pictures.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no summary.")] = False,
) -> None:
    """Rerun figures of the paper: their results files, and their pictures as PNG and SVG.

    What is done is never run again. Ctrl-C stops at once and keeps all finished runs; the same command goes
    on from there.
    """
    from klimb.experiments import reproduce as experiment

    pictures = results / "figures" if figures is None else figures
    try:
        chosen = figure_names() if names == ["all"] else list(dict.fromkeys(names))
        loaded = [load_figure(name) for name in chosen]
        _check_variants(loaded, [*(only or []), *(skip or [])])
        _writable(results)
        if draw:
            _writable(pictures)
        plans = []
        for figure in loaded:
            # with several figures, a name need not be in each of them
            mine = {variant.name for variant in figure.variants}
            wanted = [name for name in only or [] if name in mine]
            if only and not wanted:
                continue
            unwanted = [name for name in skip or [] if name in mine]
            plans.append(experiment.make_plan(figure, results, seeds, wanted, unwanted))
    except (ValueError, ImportError) as error:
        fail(str(error), 2)
    report, entries = _run(plans, results, workers, quiet)
    if draw:
        for plan in plans:
            name = plan.figure.name
            if not entries[name]:
                continue
            files = [pictures / f"{name}{ending}" for ending in PICTURES]
            experiment.draw(plan.figure, entries[name], files)
            report.files += files
    if not quiet:
        typer.echo(f"{report.done} runs done, {report.known} were done before.")
        for path in report.files:
            typer.echo(str(path))
    raise typer.Exit(1 if report.troubles else 0)


def sweep(
    name: Annotated[str, typer.Argument(metavar="FIGURE", autocompletion=_complete_figure)],
    variant: Annotated[str, typer.Argument(help="The variant whose settings are swept.")],
    seeds: Annotated[int, typer.Option("--seeds", "-s", min=1, help="Runs per point of the grid.")] = 3,
    workers: WorkersOption = None,
    results: ResultsOption = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print all points as one JSON array.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
) -> None:
    """Run the paper's hyper-parameter sweep of a variant, and show the best settings.

    Runs are kept as those of figures are; the table is in RESULTS/sweep-FIGURE-VARIANT.csv.gz.
    """
    from klimb.experiments import reproduce as experiment
    from klimb.experiments.sweep import ranked, sweep_figure

    try:
        figure = load_figure(name)
        grid = sweep_figure(figure, figure.variant(variant))
        _writable(results)
        plan = experiment.make_plan(grid, results, seeds)
    except (ValueError, ImportError) as error:
        fail(str(error), 2)
    if not plan.lines:
        fail(f"{'; '.join(plan.missing)}.", 1)
    report, entries = _run([plan], results, workers, quiet)
    scores = ranked(grid, entries[grid.name])
    if as_json:
        typer.echo(strict_json([score._asdict() for score in scores]))
    else:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in (variant, "return at the end", "± error", "average", "seeds"):
            table.add_column(heading, justify="left" if heading == variant else "right")
        for score in scores[:SHOWN]:
            numbers = (f"{score.end:.4g}", f"{score.error:.2g}", f"{score.average:.4g}", str(score.seeds))
            table.add_row(score.name, *numbers)
        Console().print(table)
        typer.echo(f"{len(scores)} points; all of them: {report.files[-1] if report.files else results}")
    raise typer.Exit(1 if report.troubles else 0)


def claims(
    results: ResultsOption = RESULTS,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON array.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for a page.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="CLAIM", help="No other claim; may be repeated.")
    ] = None,
) -> None:
    """Say for each claim of the paper whether it holds in the results files, with the numbers.

    Differences of means over seeds, with 95 % bootstrap intervals. Exit code 0 whatever the verdicts.
    """
    from klimb.experiments.claims import judge_all, load_claims

    try:
        judged = judge_all(load_claims(only or ()), results)
    except ValueError as error:
        fail(str(error), 2)
    if as_json:
        typer.echo(strict_json([verdict.as_dict() for verdict in judged]))
        return
    if markdown:
        typer.echo("| verdict | claim | numbers |\n|---|---|---|")
        for verdict in judged:
            parts = "<br>".join(f"{part.verdict}: {part.detail}" for part in verdict.parts)
            typer.echo(f"| {verdict.words} | {verdict.claim.sentence} (`{verdict.claim.id}`) | {parts} |")
        return
    console = Console(highlight=False)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for verdict in judged:
        line = Text(f"{verdict.claim.id}  ", "bold").append(verdict.claim.sentence, "not bold")
        table.add_row(Text(verdict.words, STYLES[verdict.verdict], no_wrap=True), line)
        for part in verdict.parts:
            table.add_row("", Text(f"{part.verdict}: {part.detail}", "dim"))
        table.add_row()
    console.print(table)
    counts = [f"{sum(v.verdict == name for v in judged)} {name}" for name in STYLES]
    console.print(f"{len(judged)} claims: {', '.join(counts)}.")


class _Bar(Watcher):
    """One bar over all runs on stderr, with the time left; plain lines where there is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (
            BarColumn(),
            TextColumn("{task.fields[done]}/{task.fields[runs]} runs"),
            TextColumn("time left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        )
        self.quiet = quiet
        self.progress = Progress(
            *columns,
            console=self.console,
            disable=quiet or not self.console.is_terminal,
            speed_estimate_period=600,
        )
        self.task: TaskID | None = None
        self.runs = self.done = 0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def begin(self, runs: int, cost: float) -> None:
        self.runs = runs
        if runs:
            self.task = self.progress.add_task("", total=cost, done=0, runs=runs)

    def advance(self, cost: float, trouble: str | None) -> None:
        self.done += 1
        if self.task is not None:
            self.progress.update(self.task, advance=cost, done=self.done)
        if trouble is not None:
            self.say(f"failed: {trouble}")

    def say(self, message: str) -> None:
        if not self.quiet:
            self.console.print(Text(f"klimb: {message}"))


def _run(
    plans: Sequence[Plan], results: Path, workers: int | None, quiet: bool
) -> tuple[Report, dict[str, list[Entry]]]:
    """Do what is missing, with a bar; leave with a sentence when it is interrupted."""
    from klimb.experiments import reproduce as experiment

    bar = _Bar(quiet)
    try:
        with bar:
            return experiment.reproduce(plans, results, workers or available_cores(), bar)
    except KeyboardInterrupt:
        typer.echo(
            f"klimb: stopped by Ctrl-C after {bar.done} of {bar.runs} runs; these are kept, and the "
            "same command goes on from here.",
            err=True,
        )
        raise typer.Exit(130) from None
    except OSError as error:
        fail(f"could not write to {results}: {error}", 1)


def _check_variants(figures: Sequence[Figure], names: Sequence[str]) -> None:
    """Every variant that is named must be in one of the figures."""
    known = dict.fromkeys(variant.name for figure in figures for variant in figure.variants)
    where = figures[0].name if len(figures) == 1 else "these figures"
    for name in names:
        lookup(f"variant of {where}", name, known)


def _writable(directory: Path) -> None:
    """Make a directory; a ValueError if no file can be written there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(f"nothing can be written to {directory}: {error.strerror}.") from None
