"""The command line of studies: ``klimb study create``, ``ask``, ``tell``, ``status`` and the others.

Exit codes: 0 done, 1 the study cannot go on (it is damaged or busy, the disk is full, an update failed), 2
wrong usage. Whatever the error, nothing that was told before is lost.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from klimb._command import assignments, fail, number, strict_json
from klimb.algorithms import ALGORITHMS, BASELINES, make_algorithm
from klimb.optimizer import Progress
from klimb.report.curves import bend_unit, bending
from klimb.study import Episode, Status, Study, StudyError
from klimb.tasks import Task

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# No disk has room for more; a slip of the finger should not ask for it.
MOST_PARAMETERS = 10**8

app = typer.Typer(
    help="Learn on a real robot: every episode in one file, from any language.",
    epilog="Begin with [bold]klimb study create arm.db --parameters 10 --std 1.0[/bold].",
    rich_markup_mode="rich",
    no_args_is_help=True,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The study.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Number = Annotated[int, typer.Argument(metavar="EPISODE", help="Its number.")]
Extra = Annotated[
    str | None, typer.Option("--extra", metavar="JSON", help="Further measurements, a JSON object.")
]


@contextmanager
def sorry() -> Iterator[None]:
    """Turn errors into a sentence and an exit code."""
    try:
        yield
    except (StudyError, MemoryError) as error:
        fail(str(error) or "no memory left.", 1)
    except (ValueError, ImportError) as error:
        fail(str(error), 2)
    except OSError as error:
        disk = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
        fail(str(error), 1 if disk else 2)


def complete_algorithm(incomplete: str) -> list[tuple[str, str]]:
    """Names that the shell may complete to, and what they are."""
    return [
        (name, entry.summary)
        for name, entry in (ALGORITHMS | BASELINES).items()
        if name.startswith(incomplete)
    ]


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb study create arm.db --parameters 140 --algorithm dr-creps --std 1.0 --batch 60\n\n"
    "klimb study create arm.db --names q1,q2,q3 --low -1,-2,0 --high 1,2,3 --repeats 3\n\n"
    "klimb study create arm.db --names @names.txt --mean @mean.txt --std @std.txt --set epsilon=1.0"
)
def create(
    file: File,
    parameters: Annotated[
        int | None, typer.Option(min=1, max=MOST_PARAMETERS, help="How many there are.")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="Their names, with commas between, or [bold]@FILE[/bold].")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Where to start: a number, one per parameter, or @FILE "
            "[dim](middle of the bounds, else 0)[/dim]."
        ),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option(help="Standard deviation to start with, likewise [dim](a quarter of the bounds)[/dim]."),
    ] = None,
    low: Annotated[str | None, typer.Option(help="Lower bounds, likewise.")] = None,
    high: Annotated[str | None, typer.Option(help="Upper bounds, likewise.")] = None,
    outside: Annotated[
        str,
        typer.Option(metavar="resample|clip", help="What to do with samples outside the bounds."),
    ] = "resample",
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            "-a",
            help="See [bold]klimb list algorithms[/bold].",
            autocompletion=complete_algorithm,
        ),
    ] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of the algorithm; may be repeated."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="Samples per update [dim](the algorithm's)[/dim].")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Episodes per sample; their mean is learned from.")] = 1,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="What all samples derive from.")] = 0,
) -> None:
    """Make a new study."""
    with sorry():
        search = make_algorithm(algorithm, **assignments("--set", settings))
        if hasattr(search, "agent"):
            raise ValueError(
                f"{algorithm} acts step by step, so that nobody else can run its episodes: klimb run TASK "
                f"--algorithm {algorithm} --study {file} keeps them."
            )
        labels = None if names is None else _words("--names", names)
        given = {"mean": mean, "std": std, "low": low, "high": high}
        start = {name: _numbers(f"--{name}", text) for name, text in given.items() if text is not None}
        n = _count(parameters, labels, start)
        if "mean" not in start and not all(
            np.isfinite(start.get(name, np.inf)).all() for name in ("low", "high")
        ):
            start["mean"] = 0.0
        start = {name: np.full(n, value) if np.ndim(value) == 0 else value for name, value in start.items()}
        study = Study.create(
            file,
            search,
            names=labels,
            outside=outside,
            batch=batch,
            repeats=repeats,
            seed=seed,
            **start,
        )
        study.close()
    made = study.settings
    each = "" if repeats == 1 else f", each run {repeats} times"
    often = "an update after every" if made.learner == "optimizer" else "in batches of"
    typer.echo(f"{file}: {n} parameters, {algorithm}, {often} {made.batch} samples{each}")


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb study ask arm.db --json\n\n"
    "klimb study ask arm.db --json --reissue-after 10m"
)
def ask(
    file: File,
    reissue_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Hand out again what has not come back for so long: 90s, 10m, 2h; 0 with a single robot.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hand out an episode to run."""
    with sorry():
        seconds = None if reissue_after is None else _seconds("--reissue-after", reissue_after)
        with Study(file) as study:
            episode, names = study.ask(reissue_after=seconds), study.names
    if as_json:
        typer.echo(strict_json(_episode(episode, names)))
        return
    typer.echo(f"episode {episode.id}, seed {episode.seed}")
    for name, value in zip(names, episode.parameters.tolist(), strict=True):
        typer.echo(f"{name} = {value!r}")


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "klimb study tell arm.db 17 --return -3.2\n\n"
    "klimb study tell arm.db 17 --return -3.2 --extra '{\"energy\": 41.5}'\n\n"
    'klimb study tell arm.db 17 --failed "motor fault"\n\n'
    "klimb study tell arm.db --parameters 0.1,0.4,-0.2 --return 5.0"
)
def tell(
    file: File,
    episode: Annotated[int | None, typer.Argument(metavar="EPISODE", help="Its number.")] = None,
    return_: Annotated[
        str | None,
        typer.Option("--return", "-r", metavar="NUMBER", help="What it earned; larger is better."),
    ] = None,
    failed: Annotated[
        str | None, typer.Option("--failed", metavar="REASON", help="It has no return, and why.")
    ] = None,
    parameters: Annotated[
        str | None,
        typer.Option(help="An episode of your own: its parameters, with commas between, or @FILE."),
    ] = None,
    extra: Extra = None,
    study_id: Annotated[
        str | None,
        typer.Option("--study", metavar="ID", help="Which study gave it, as ask says; is checked."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how an episode ended, or insert one of your own."""
    with sorry():
        if (return_ is None) == (failed is None):
            raise ValueError('say how it ended: --return NUMBER, or --failed "what happened".')
        if (episode is None) == (parameters is None):
            raise ValueError("say which episode: its number, or --parameters for one of your own.")
        if parameters is not None and failed is not None:
            raise ValueError("an episode of your own needs a --return.")
        more = None if extra is None else _object("--extra", extra)
        value = None if return_ is None else _return(return_)
        seen: list[Progress] = []
        with Study(file, callback=seen.append) as study:
            if study_id is not None and study_id != study.settings.uid:
                raise ValueError(
                    f"the episode belongs to study {study_id}, but {file} is {study.settings.uid}."
                )
            if parameters is not None and value is not None:
                theta = np.atleast_1d(_numbers("--parameters", parameters))
                episode = study.insert(theta, value, extra=more)
            elif episode is not None and value is not None:
                study.tell(episode, value, extra=more)
            elif episode is not None and failed is not None:
                study.fail(episode, failed, extra=more)
    _say(as_json, f"episode {episode} is stored", {"episode": episode}, seen)


@app.command(
    "fail",
    epilog="[bold]Examples[/bold]\n\n"
    "klimb study fail arm.db 17 18\n\n"
    'klimb study fail arm.db --older-than 1h --reason "robot 2 is broken"',
)
def fail_(
    file: File,
    episodes: Annotated[list[int] | None, typer.Argument(metavar="EPISODE...", help="Numbers.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="All that have been pending for so long: 90s, 10m, 2h; 0 for all."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why.")] = "declared failed",
    as_json: AsJson = False,
) -> None:
    """Declare pending episodes failed, so that the batch goes on with what it has."""
    with sorry():
        if bool(episodes) == (older_than is not None):
            raise ValueError("say which episodes: their numbers, or --older-than TIME.")
        seen: list[Progress] = []
        with Study(file, callback=seen.append) as study:
            if older_than is not None:
                episodes = study.overdue(_seconds("--older-than", older_than))
            chosen = list(episodes or [])
            study.fail(chosen, reason)
    words = f"failed: {', '.join(map(str, chosen)) or 'none'}"
    _say(as_json, words, {"failed": chosen}, seen)


@app.command(epilog="[bold]Example[/bold]\n\nklimb study retry arm.db 17")
def retry(file: File, episode: Number, as_json: AsJson = False) -> None:
    """Run a failed episode again: the next ask hands out its parameters, under a new number."""
    with sorry(), Study(file) as study:
        new = study.retry(episode)
    typer.echo(strict_json({"episode": new}) if as_json else f"episode {episode} will be run again as {new}")


@app.command("import", epilog="[bold]Example[/bold]\n\nklimb study import arm.db old_episodes.csv")
def import_(
    file: File,
    table: Annotated[
        Path, typer.Argument(help="A .csv file: a column per parameter, and [bold]return[/bold].")
    ],
    as_json: AsJson = False,
) -> None:
    """Learn from old episodes."""
    with sorry():
        seen: list[Progress] = []
        with Study(file, callback=seen.append) as study:
            ids = study.import_csv(table)
    _say(as_json, f"{len(ids)} episodes are stored", {"episodes": ids}, seen)


@app.command(epilog="[bold]Example[/bold]\n\nklimb study export arm.db episodes.csv")
def export(
    file: File,
    output: Annotated[Path, typer.Argument(help="A .csv, .jsonl (JSON lines) or .parquet file.")],
) -> None:
    """Write all episodes to a table."""
    with sorry(), Study(file) as study:
        count = study.export(output)
    typer.echo(f"{count} episodes in {output}")


@app.command(epilog="[bold]Example[/bold]\n\nklimb study status arm.db")
def status(
    file: File,
    top: Annotated[int, typer.Option(min=0, help="How many parameters to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show progress, the learning curve, which parameters matter, and what is pending."""
    with sorry(), Study(file) as study:
        found = study.status()
    if as_json:
        typer.echo(strict_json(as_plain(found)))
    else:
        print_status(file, found, top)


def as_plain(found: Status) -> dict[str, Any]:
    """A status as JSON can hold it."""
    settings = found.settings
    return {
        "study": settings.uid,
        "created": settings.created,
        "algorithm": settings.algorithm,
        "n_parameters": settings.n_parameters,
        "batch": settings.batch,
        "repeats": settings.repeats,
        "seed": settings.seed,
        "run": settings.run,
        "updates": found.updates,
        "done": found.done,
        "failed": found.failed,
        "pending": [
            {"episode": one.episode, "since": one.since, "issued": one.issued} for one in found.pending
        ],
        "settled": found.settled,
        "needed": found.needed,
        "ended": found.ended,
        "best_return": found.best_return,
        "best_episode": found.best_episode,
        "curve": [dict(zip(found.curve.dtype.names or (), row, strict=True)) for row in found.curve.tolist()],
        "effectiveness": dict(found.matters) if found.matters else None,
        "mean": dict(zip(settings.names, found.mean.tolist(), strict=True)),
        "std": None if found.std is None else dict(zip(settings.names, found.std.tolist(), strict=True)),
        "failures": [{"episode": episode, "reason": reason} for episode, reason in found.failures],
    }


def print_status(file: Path, found: Status, top: int) -> None:
    """A status for people."""
    settings = found.settings
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{escape(str(file))}[/bold] ({settings.n_parameters} parameters), "
        f"[bold]{settings.algorithm}[/bold]: {found.done} episodes done, {found.failed} failed, "
        f"{len(found.pending)} pending; {found.updates} updates"
    )
    if found.ended:
        console.print("the search has come to its end: it has nothing left to try")
    elif settings.learner != "agent":
        console.print(f"{found.settled} of {found.needed} samples for the next update")
    if found.best_return is not None:
        console.print(f"best return {number(found.best_return)}, episode {found.best_episode}")
    point = "batch" if settings.learner == "conversation" else "update"
    if found.curve.size == 1:
        console.print(f"mean return of the first {point} {number(found.curve['mean_return'][0])}")
    if found.curve.size > 1:
        console.print(f"\n[bold]Mean return by {point}[/bold]")
        for line in draw_curve(found.curve["mean_return"].tolist(), blocks=not console.options.ascii_only):
            console.print(escape(line))
    if found.matters and found.std is not None and top:
        console.print("\n[bold]Which parameters matter[/bold]")
        table = Table(box=None, padding=(0, 2), show_header=False)
        places = {name: j for j, name in enumerate(settings.names)}
        for name, value in found.matters[:top]:
            j = places[name]
            now = f"{number(found.mean[j])} ± {number(found.std[j])}"
            table.add_row(escape(name), number(value), "now " + now)
        console.print(table)
    if found.pending:
        console.print("\n[bold]Pending[/bold]")
        table = Table(box=None, padding=(0, 2), show_header=False)
        for one in found.pending[:top]:
            since = "waits to be handed out" if one.since is None else f"for {_age(one.since)}"
            often = "" if one.issued < 2 else f"handed out {one.issued} times"
            table.add_row(f"episode {one.episode}", since, often)
        console.print(table)
        if len(found.pending) > top:
            console.print(f"  and {len(found.pending) - top} more")
    if found.failures:
        console.print("\n[bold]Latest failures[/bold]")
        table = Table(box=None, padding=(0, 2), show_header=False)
        for episode, reason in found.failures:
            table.add_row(f"episode {episode}", escape(str(reason)))
        console.print(table)


def draw_curve(
    values: Sequence[float], *, width: int = 64, height: int = 8, blocks: bool = True
) -> list[str]:
    """A curve as lines of text, its scale on the left; many values are averaged into `width` columns.

    The scale is bent as in pictures where the curve begins far below its end.
    """
    groups = np.array_split(np.array(values), min(width, len(values)))
    heights = np.array([group.mean() for group in groups])
    low, high = float(heights.min()), float(heights.max())
    span = high - low
    labels = {height - 1: number(high), 0: number(low)}
    share = (heights - low) / span if 0 < span < math.inf else np.full(heights.size, 0.5)
    # the second half, since without the best returns the end of a climb is its top
    unit = bend_unit(span, high - float(np.median(heights[heights.size // 2 :])))
    if unit is not None and span < math.inf:
        bend, unbend = bending(high, unit)
        share = 1 - bend(heights) / bend(low)
        for row in (height // 3, 2 * height // 3):
            labels[row] = f"{unbend((1 - (row + 0.5) / height) * bend(low)):.3g}"
    steps = 8 if blocks else 1
    marks = " ▁▂▃▄▅▆▇█" if blocks else " #"
    filled = np.maximum(1, np.rint(share * height * steps)).astype(int)
    margin = max(map(len, labels.values()))
    lines = []
    for row in reversed(range(height)):
        columns = "".join(marks[level] for level in np.clip(filled - row * steps, 0, steps))
        lines.append(f"{labels.get(row, ''):>{margin}} {'┤' if blocks else '|'}{columns}")
    return lines


def _episode(episode: Episode, names: Sequence[str]) -> dict[str, Any]:
    """What ``ask --json`` prints."""
    return {
        "episode": episode.id,
        "parameters": episode.parameters.tolist(),
        "names": list(names),
        "seed": episode.seed,
        "iteration": episode.iteration,
        "repeat": episode.repeat,
        "bounds": episode.bounds,
        "study": episode.study,
    }


def _say(as_json: bool, words: str, plain: Mapping[str, Any], seen: list[Progress]) -> None:
    """Print what was stored, and the update if there was one."""
    update = None
    if seen:
        info = seen[-1].info
        update = {
            "number": seen[-1].optimizer.iteration,
            "n_used": info.n_used,
            "n_failed": info.n_failed,
            "kl": info.kl,
            "entropy_drop": info.entropy_drop,
        }
        words += f"; update {update['number']} from {info.n_used} samples"
        if not math.isnan(info.kl):
            words += f", KL {number(info.kl)}"
    typer.echo(strict_json({**plain, "update": update}) if as_json else words)


def _age(since: str) -> str:
    """How long ago that was, roughly."""
    try:
        seconds = (datetime.now(UTC) - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):  # no time, or one without a time zone
        return f"since {since}"
    for unit in ("d", "h", "m"):
        if seconds >= 2 * UNITS[unit]:
            return f"{seconds / UNITS[unit]:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _seconds(option: str, text: str) -> float:
    """A time such as 90s, 10m, 2h, 1d, or plain seconds."""
    word = text.strip().lower()
    unit = UNITS.get(word[-1:], 1.0)
    try:
        value = float(word[:-1] if word[-1:] in UNITS else word) * unit
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e9:
        raise ValueError(f"{option} must be a time such as 90s, 10m or 2h, but {text!r} came.")
    return value


def _return(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"--return must be a number, but {text!r} came.") from None


def _words(option: str, text: str) -> list[str]:
    """Words with commas between, or from a file named by @FILE, where they may stand on lines."""
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{option} {text} is not a text file.") from None
    words = [word.strip() for word in text.replace("\n", ",").split(",")]
    return [word for word in words if word]


def _numbers(option: str, text: str) -> Any:
    """A number, or an array of several."""
    words = _words(option, text)
    values = []
    for word in words:
        try:
            values.append(float(word))
        except ValueError:
            raise ValueError(f"{option} must be numbers with commas between, but {word!r} came.") from None
    if not values:
        raise ValueError(f"{option} must be numbers with commas between, but {text!r} came.")
    return values[0] if len(values) == 1 else np.array(values)


def _count(parameters: int | None, names: list[str] | None, start: Mapping[str, Any]) -> int:
    """The number of parameters that the options agree on."""
    sizes = {f"--{name}": len(value) for name, value in start.items() if np.ndim(value)}
    if parameters is not None:
        sizes["--parameters"] = parameters
    if names is not None:
        sizes["--names"] = len(names)
    if not sizes:
        raise ValueError("how many parameters are there? Say --parameters NUMBER or --names q1,q2,...")
    (option, n), *others = sizes.items()
    for other, size in others:
        if size != n:
            raise ValueError(f"{option} says {n} parameters, but {other} says {size}.")
    return n


def _object(option: str, text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{option} must be a JSON object: {error}.") from None
    if not isinstance(found, dict):
        raise ValueError(f'{option} must be a JSON object such as {{"energy": 41.5}}, but {text!r} came.')
    return found


def open_run(file: Path, run: Mapping[str, Any], search: Any, task: Task) -> Study:
    """The study of a simulated run: a new one, or the one that the same command made before.

    Parameters
    ----------
    file
        Where it is.
    run
        The command's settings: "batch", "seed", "std", "episodes" and whatever else makes it what it is.
    search, task
        The algorithm and what it learns.
    """
    if not file.exists():
        batch, seed = min(run["batch"], run["episodes"]), run["seed"]
        start: dict[str, Any] = {"mean": np.zeros(task.n_parameters), "std": run["std"]}
        if hasattr(search, "agent"):
            from klimb.baselines import first_policy

            start = {"mean": first_policy(task, search, batch=batch, seed=seed)}
        return Study.create(file, search, batch=batch, seed=seed, run=run, **start)
    study = Study(file)
    try:
        before = study.settings.run
        if before is None:
            raise ValueError(f"{file} is a study that is run by ask and tell; choose another file.")
        for name in run.keys() - {"episodes"}:
            if before.get(name) != json.loads(json.dumps(run[name])):
                raise ValueError(
                    f"{file} holds a run with {name} = {before.get(name)!r}, but now it is {run[name]!r}. To "
                    f"go on with that run: klimb study resume {file}"
                )
    except BaseException:
        study.close()
        raise
    return study


def settled_run(study: Study) -> dict[str, Any]:
    """The settings of the simulated run that a study holds."""
    run = study.settings.run
    if run is None:
        raise ValueError(
            f"{study.path} has no simulated task to go on with; a robot goes on with: klimb study ask "
            f"{study.path}"
        )
    wanted = ("task", "options", "algorithm", "settings", "batch", "std", "seed", "episodes")
    if (
        set(run) != set(wanted)
        or not isinstance(run["options"], dict)
        or not isinstance(run["settings"], dict)
    ):
        raise ValueError(f"{study.path} was not made by klimb run --study: go on with Study.run in Python.")
    return dict(run)
