"""The dashboard's time to open a large study and to follow it: 10,000 episodes of 450 parameters.

Over HTTP, as a browser asks, with the server in this process. Wall time, since a reader waits for that; CPU
time stands beside it, which other processes on the machine spoil less. The study is a real run of DR-CREPS.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from core import console, table
from rich.progress import track

import klimb
from klimb._validation import FloatArray
from klimb.dashboard import server
from klimb.dashboard.folder import Folder
from klimb.dashboard.report import write_report

EPISODES, PARAMETERS, BATCH = 10_000, 450, 15
OPENED, FOLLOWED = 5, 20
MOST_TO_OPEN, MOST_TO_FOLLOW = 2.0, 0.2  # seconds


def returns(theta: FloatArray) -> float:
    return float(-np.sum((theta[::9] - 0.5) ** 2))


def make_study(path: Path) -> None:
    algorithm = klimb.dr_creps(epsilon=1.0, kappa=5.0, n_effective=100)
    mean = np.zeros(PARAMETERS)
    with klimb.Study.create(path, algorithm, mean=mean, std=0.5, batch=BATCH, seed=0) as study:
        steps = range(BATCH, EPISODES + BATCH, BATCH)
        for episodes in track(steps, "a study of 10,000 episodes", console=console, transient=True):
            study.run(returns, episodes=episodes)


@contextmanager
def serving(path: Path) -> Iterator[Callable[[str], bytes]]:
    """What fetches from a fresh server that shows `path`."""
    waiting = server.listen("127.0.0.1", 0)
    made = server.make_server(Folder(path), "127.0.0.1", None)
    thread = threading.Thread(target=made.run, kwargs={"sockets": [waiting]})
    thread.start()
    address = server.url_of(waiting, "127.0.0.1", None)

    def fetch(what: str) -> bytes:
        with urlopen(address + what) as answer:
            content: bytes = answer.read()
        return content

    try:
        fetch("page/page.css")  # the server is up
        yield fetch
    finally:
        made.should_exit = True
        thread.join()
        waiting.close()


def open_study(fetch: Callable[[str], bytes]) -> bytes:
    """All that a browser asks for until it can draw."""
    for what in ("", "page/page.css", "page/plots.js", "page/page.js", "api/studies"):
        fetch(what)
    return fetch("api/study?study=large.db")


def question(told: dict[str, Any]) -> str:
    """What a browser asks next that was told so much."""
    seen = told["summary"]
    return (
        f"api/study?study=large.db&epoch={told['epoch']}&points={seen['done']}&updates={seen['updates']}"
        f"&changes={told['changes']}"
    )


def measured(work: Callable[..., bytes], *arguments: Any) -> tuple[tuple[float, float], bytes]:
    """Wall and CPU time in seconds, and what came out."""
    wall, cpu = time.perf_counter(), time.process_time()
    answer = work(*arguments)
    return (time.perf_counter() - wall, time.process_time() - cpu), answer


def row(name: str, times: list[tuple[float, float]], bar: float) -> list[str]:
    wall, cpu = ([one[kind] for one in times] for kind in (0, 1))
    return [
        name,
        *(f"{1000 * value:.0f} ms" for value in (min(cpu), min(wall), statistics.median(wall), max(wall))),
        f"{1000 * bar:.0f} ms",
        "yes" if statistics.median(wall) < bar else "NO",
    ]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "large.db"
        make_study(path)
        opened, followed, idle, sizes = [], [], [], []
        for _ in range(OPENED):
            with serving(path) as fetch:
                opened.append(measured(open_study, fetch)[0])
        with serving(path) as fetch, klimb.Study(path) as study:
            told = json.loads(open_study(fetch))
            for _ in range(FOLLOWED):
                study.run(returns, episodes=told["summary"]["done"] + BATCH)
                times, answer = measured(fetch, question(told))
                followed.append(times)
                sizes.append(len(answer))
                told |= json.loads(answer)
                idle.append(measured(fetch, question(told))[0])
        made = write_report(path, Path(directory) / "report.html")
        table(
            f"{EPISODES:,} episodes of {PARAMETERS} parameters, {told['summary']['updates']} updates",
            ["", "least CPU", "least", "median", "most", "bar", "kept"],
            [
                row(f"open ({OPENED} fresh servers)", opened, MOST_TO_OPEN),
                row(
                    f"follow an update ({FOLLOWED}, {statistics.median(sizes) / 1e3:.0f} kB)",
                    followed,
                    MOST_TO_FOLLOW,
                ),
                row("nothing new", idle, MOST_TO_FOLLOW),
            ],
        )
        console.print(f"The report of it has {made['bytes'] / 1e6:.2f} MB.")


if __name__ == "__main__":
    main()
