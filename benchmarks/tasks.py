"""The tasks' speed, as ratios within one run.

One thread is measured in CPU time, the least of several. Two threads or processes need wall time, which other
processes on the machine spoil: beside each stands the control, how much faster two plain loops run in two
processes at once than one after the other. Near 2, two cores were free; near 1, only one was.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mujoco
import numpy as np
from core import console, least, table

import klimb
from klimb._validation import FloatArray
from klimb.evaluation import Workers
from klimb.tasks import air_hockey, ball_stopping
from klimb.tasks._mujoco import load_model
from klimb.tasks.air_hockey import AirHockey
from klimb.tasks.ball_stopping import BallStopping
from klimb.tasks.ship_steering import ShipSteering

MUSHROOM_SHIP = 17  # episodes per second of MushroomRL 1.10.2 on a quiet core
REPEATS = 9
# A plain loop of some .3 s, in a process that starts at once
SPIN = """
import time
start, total = time.perf_counter(), 0
for number in range(6_000_000):
    total += number
print(time.perf_counter() - start)
"""


def random_parameters(task: Any, count: int) -> FloatArray:
    """Draws (count, n) from the task's initial distribution."""
    draws = np.random.default_rng(0).standard_normal((count, task.n_parameters))
    return np.asarray(task.initial_std * draws)


# ------------------------------------------------------------------------------------------------ one core


def ship() -> None:
    task = ShipSteering()
    # straight on until x = 60, then as hard to the left as the ship can, for ever
    weights = np.zeros((task.n_tilings, *task.tiles))
    weights[:, 2:] = -1.0
    rows = []
    for name, theta in (
        ("initial distribution", random_parameters(task, 15)),
        ("circling to the horizon", np.tile(weights.ravel(), (15, 1))),
    ):
        steps = sum(len(task.trajectory(row)) - 1 for row in theta) / 15
        task.evaluate(theta)
        rate = 15 / least(partial(task.evaluate, theta), 50)
        ratio = f"{rate / MUSHROOM_SHIP:.0f}"
        rows.append((f"N=15, {name}", f"{steps:.0f}", f"{rate:.0f}", ratio, ">= 100"))
    table("ShipSteering", ("", "steps per episode", "episodes/s", "x MushroomRL", "bar"), rows)


def bare_loop(model: mujoco.MjModel, initial: FloatArray, episodes: list[FloatArray], substeps: int) -> None:
    """Simulate episodes with mj_step and nothing else; controls (T, nu) of each, up to its end."""
    data = mujoco.MjData(model)
    for controls in episodes:
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:] = initial[: model.nq], initial[model.nq :]
        for control in controls:
            data.ctrl[:] = control
            for _ in range(substeps):
                mujoco.mj_step(model, data)


def physics() -> None:
    """The batch against a bare loop of the same episodes, which neither records nor rewards anything."""
    hockey, stopping = AirHockey(), BallStopping()
    rows = []
    for name, task, count, model, substeps, initial, controls in (
        (
            "AirHockey",
            hockey,
            50,
            load_model(air_hockey.MODEL),
            air_hockey.SUBSTEPS,
            air_hockey.initial_state("incoming", np.random.default_rng(0)),
            air_hockey.torques,
        ),
        (
            "BallStopping",
            stopping,
            60,
            ball_stopping.model(),
            1,
            stopping.initial_state(np.random.default_rng(0)),
            ball_stopping.joint_references,
        ),
    ):
        theta = random_parameters(task, count)
        lengths = [len(task.trajectory(row)) - 1 for row in theta]
        paired = zip(controls(task.policy.trajectory(theta)), lengths, strict=True)
        episodes = [np.ascontiguousarray(episode[:length]) for episode, length in paired]
        steps = substeps * sum(lengths)
        ours = bare = np.inf
        for _ in range(REPEATS):  # by turns, so that a busy moment hits both
            bare = min(bare, least(partial(bare_loop, model, initial, episodes, substeps), 1))
            ours = min(ours, least(partial(task.evaluate, theta), 1))
        rows.append(
            (
                f"{name}, N={count}, {steps} steps",
                f"{1e6 * ours / steps:.2f} us",
                f"{1e6 * bare / steps:.2f} us",
                f"{100 * bare / ours:.0f} %",
                ">= 80 %",
            )
        )
    columns = ("CPU time per physics step", "evaluate", "bare loop", "of the loop's speed", "bar")
    table("Physics, one thread", columns, rows)


# ----------------------------------------------------------------------------------------------- two cores


def spinning(count: int) -> float:
    """Wall time of the slowest of some loops that run at once, each in a process of its own."""
    command = [sys.executable, "-c", SPIN]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return max(float(process.communicate()[0]) for process in running)


def compared(one: Callable[[], object], two: Callable[[], object]) -> tuple[float, float, float]:
    """Least wall times of `one` and `two`, and the control."""
    walls = [[np.inf, np.inf], [np.inf, np.inf]]
    for _ in range(REPEATS):
        for place, work in enumerate((one, two)):
            start = time.perf_counter()
            work()
            walls[0][place] = min(walls[0][place], time.perf_counter() - start)
        for place in range(2):
            walls[1][place] = min(walls[1][place], spinning(place + 1))
    return walls[0][0], walls[0][1], 2 * walls[1][0] / walls[1][1]


def two_cores() -> None:
    rows = []

    def add(name: str, count: int, seconds: tuple[float, float, float], bar: str) -> None:
        one, two, control = seconds
        rates = (f"{count / one:.0f} episodes/s", f"{count / two:.0f} episodes/s")
        rows.append((name, *rates, f"{one / two:.2f}", f"{control:.2f}", bar))

    for name, kind, count in (("AirHockey", AirHockey, 50), ("BallStopping", BallStopping, 60)):
        theta = random_parameters(kind(), count)
        times = compared(*(partial(kind(threads=threads).evaluate, theta) for threads in (1, 2)))
        add(f"{name}, N={count}, threads", count, times, ">= 1.6")
    for name, count in (("Pendulum-v1", 60), ("Swimmer-v5", 16)):
        task = klimb.make_task(f"gymnasium:{name}")
        theta = random_parameters(task, count)
        with Workers(task, 1) as one, Workers(task, 2) as two:
            one.evaluate(theta)
            two.evaluate(theta)
            times = compared(partial(one.evaluate, theta), partial(two.evaluate, theta))
        add(f"{name}, N={count}, processes", count, times, ">= 1.6")
    columns = ("", "one", "two", "ratio", "control", "bar if control is near 2")
    table("Two at once, wall time", columns, rows)


if __name__ == "__main__":
    with console.status("timing"):
        ship()
        physics()
        two_cores()
