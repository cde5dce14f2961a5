"""What it costs to evaluate somewhere else, and what it gains; ask and tell as n grows.

Overheads are wall time of episodes that sleep, the least of several, against the same episodes in this
process: a busy machine spoils them less than it would spoil work. Two processes need two free cores: the
control says how many there were (see tasks.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from core import console, table
from loopback import two_nodes
from peers import ours_step, step_seconds
from tasks import compared, random_parameters

import klimb
from klimb._validation import FloatArray
from klimb.evaluation import Workers
from klimb.tasks import Task, task_from_function

NAP = 0.01
REPEATS = 7


def nap(theta: FloatArray) -> float:
    time.sleep(NAP)
    return float(theta[0])


def nothing(theta: FloatArray) -> float:
    return 0.0


def wall(work: Callable[[], object], repeats: int = REPEATS) -> float:
    """Least wall time in seconds."""
    times = []
    for _ in range(repeats + 1):  # the first one warms up
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times[1:])


def overhead() -> None:
    """Time per episode of 10 ms that is not the episode; what sleeping takes too long is counted in."""
    task = task_from_function(nap, 10)
    theta = np.zeros((60, 10))
    rows = []
    with ExitStack() as stack:
        nodes = stack.enter_context(two_nodes())
        pool = stack.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn")))
        for name, settings, bar in (
            ("1 worker process", {"count": 1}, "< 1 ms"),
            ("2 worker processes", {"count": 2}, "< 1 ms"),
            ("executor with 2 processes", {"executor": pool}, ""),
            ("Ray, 2 nodes of a core", {"cluster": nodes.address}, "< 3 ms"),
            ("Ray, the same by ray://", {"cluster": nodes.client}, ""),
        ):
            with Workers(task, **settings) as workers:
                seconds = workers.count * wall(partial(workers.evaluate, theta)) / len(theta)
            rows.append((name, f"{1e3 * seconds:.2f} ms", f"{1e3 * (seconds - NAP):.2f} ms", bar))
    table("60 episodes of 10 ms", ("", "worker's time per episode", "overhead", "bar"), rows)


def no_time() -> None:
    """Episodes that take no time, with two workers and without."""
    rows = []
    task: Task
    for name, task, count in (
        ("a function that returns 0, N=50", task_from_function(nothing, 10), 50),
        ("a function that returns 0, N=1000", task_from_function(nothing, 10), 1000),
        ("LQR, N=50", klimb.make_task("lqr"), 50),
    ):
        theta = random_parameters(task, count)
        with Workers(task, 2) as workers:
            times = [wall(partial(place.evaluate, theta), 100) for place in (task, workers)]
        rows.append(
            (f"evaluate: {name}", *(f"{1e6 * took:.0f} us" for took in times), f"{times[1] / times[0]:.2f}")
        )
    sphere = klimb.make_task("sphere")
    settings: Any = {"mean": np.zeros(sphere.n_parameters), "episodes": 5000, "batch": 50, "seed": 0}
    with Workers(sphere, 2) as workers:
        times = [
            wall(partial(klimb.maximize, place, klimb.dr_creps(), std=1.0, **settings), 3)
            for place in (sphere, workers)
        ]
    rows.append(("search: sphere, N=50", *(f"{took:.2f} s" for took in times), f"{times[1] / times[0]:.2f}"))
    table("Episodes that take no time (bar: 3)", ("", "in process", "2 workers", "ratio"), rows)


def two_workers() -> None:
    task = klimb.make_task("ball-stopping")
    theta = random_parameters(task, 60)
    with Workers(task, 1) as one, Workers(task, 2) as two:
        one.evaluate(theta)
        two.evaluate(theta)
        first, second, control = compared(partial(one.evaluate, theta), partial(two.evaluate, theta))
    rates = [f"{60 / seconds:.0f} episodes/s" for seconds in (first, second)]
    row = ("BallStopping, N=60", *rates, f"{first / second:.2f}", f"{control:.2f}", ">= 1.7")
    table("Two workers", ("", "one", "two", "ratio", "control", "bar if control is near 2"), [row])


def growth() -> None:
    sizes = (10_000, 100_000, 1_000_000)
    rows = []
    before = None
    for n in sizes:
        took = step_seconds(ours_step("full"), n)
        exponent = "" if before is None else f"{np.log10(took / before):.2f}"
        rows.append((f"n = {n:,}", f"{took:.3g} s", f"{1e9 * took / n:.0f} ns", exponent))
        before = took
    title = "DR-CREPS, n_effective = 50, N = 50: ask + tell, CPU time (bar: exponent about 1)"
    table(title, ("", "ask + tell", "per parameter", "exponent"), rows)


if __name__ == "__main__":
    with console.status("timing"):
        no_time()
        overhead()
        two_workers()
        growth()
