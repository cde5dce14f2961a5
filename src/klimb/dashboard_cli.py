"""The commands that show studies: dashboard, live in a browser, and report, one file to send."""

from __future__ import annotations

import secrets
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from klimb._command import fail, strict_json
from klimb.study_cli import sorry

LOOPBACK = "127.0.0.1"
PORT = 8750
SHORTEST_TOKEN = 16

Source = Annotated[
    Path, typer.Argument(metavar="FILE_OR_FOLDER", help="A study, or a folder with studies in it.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    examples = "[bold]Examples[/bold]\n\n"
    app.command(
        epilog=examples + "klimb dashboard arm.db\n\n"
        "klimb dashboard studies/ --open\n\n"
        "klimb dashboard arm.db --host 0.0.0.0 --port 8080"
    )(dashboard)
    app.command(
        epilog=examples + "klimb report arm.db -o report.html\n\nklimb report studies/ -o report.html"
    )(report)


def dashboard(
    source: Source,
    host: Annotated[
        str,
        typer.Option(help="Address to listen on; other than this computer's own it takes a token."),
    ] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = PORT,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="KLIMB_TOKEN",
            help="What a browser must know [dim](made up where one is needed)[/dim].",
        ),
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow studies live in a browser; Ctrl-C ends it."""
    with sorry():
        try:
            from klimb.dashboard import server
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
                raise
            raise ImportError(
                f"the dashboard needs {error.name}: pip install 'klimb[dashboard]' (klimb report does not)."
            ) from None
        from klimb.dashboard.folder import Folder

        if token is None and not server.is_loopback(host):
            token = secrets.token_urlsafe(24)
        if token is not None and not (
            len(token) >= SHORTEST_TOKEN and token.isascii() and token.isprintable()
        ):
            raise ValueError(f"--token must be at least {SHORTEST_TOKEN} plain letters, digits or signs.")
        folder = Folder(source)
        waiting = server.listen(host, port)
    with waiting:
        url = server.url_of(waiting, host, token)
        typer.echo(f"{source} is shown at {url}")
        typer.echo("Ctrl-C ends it.", err=True)
        if open_:
            webbrowser.open(url)
        try:
            server.make_server(folder, host, token).run(sockets=[waiting])
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def report(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", help="An .html file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write what the dashboard shows into one file that needs no network."""
    from klimb.dashboard.report import write_report

    if output.suffix.lower() not in (".html", ".htm"):
        fail(f"--output must end in .html, but {output} came.", 2)
    if output.is_dir():
        fail(f"{output} is a directory: name a file in it.", 2)
    console = Console(stderr=True)
    shown = partial(
        track, description="studies", console=console, transient=True, disable=not console.is_terminal
    )
    with sorry():
        made = write_report(source, output, shown)
    words = f"{made['studies']} studies" if made["studies"] != 1 else "1 study"
    size = f"{made['bytes'] / 1e6:.1f} MB" if made["bytes"] >= 1e6 else f"{made['bytes'] / 1e3:.0f} kB"
    typer.echo(strict_json({"output": str(output), **made}) if as_json else f"{words} in {output}, {size}")
