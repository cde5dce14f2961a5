"""The physics of AirHockey and BallStopping over 10,000 random episodes each.

A third of the episodes each has weights of .1, 1 and 5 times the initial standard deviation. All of them are
watched at every physics step, on the task's own model plus sensors, which do not change its motion. Neither a
mallet that leaves the table nor a ball that stands still ends an episode here: only a goal or a dropped ball.

Depth. How far surfaces sink into each other, from the geometry alone, not from MuJoCo's collisions. Between
two steps, puck and mallet move along straight lines; for ball and arm, which also turns, it is an upper
bound. A depth that stays below the bar cannot have been a passage.

Energy, in two ways. F is a generalised force, v0 and v1 are the velocities before and after a step h.
MuJoCo's step fulfils M (v1 - v0) = h (sum of all F) to rounding, so F (v0 + v1) h / 2 is what a force adds
to the kinetic energy v M v / 2 if F is what the implicit integrator applies: for dampers, and for position
controllers unless they are at their limit, that of the velocity v1. Moments are compared at which no spring
is pressed that could give back what it took: no joint is at its limit, nothing touches the arm, the mallet
or the puck. The ball may lie on the table.

- From contacts: the work of all constraints (contacts, joint limits, friction) from such a moment up to
  and including the next. It must not be positive, and is free of the integrator's error.
- Balance: mechanical energy less the work of the actuators. It must not rise from such a moment to any later
  one. Dampers are not counted, they can only take. Here the integrator's error counts, in proportion to the
  energy of the arm, whose inertia is taken from the beginning of each step; so a rise is given in percent of
  the episode's largest energy.

Known to be missed, at 5 standard deviations only: an arm that hammers on the table gains energy from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from typing import NamedTuple

import mujoco
import numpy as np
from mujoco.batch import Batch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from klimb._validation import FloatArray
from klimb.tasks import air_hockey, ball_stopping
from klimb.tasks.air_hockey import GOAL_HALF_WIDTH, HALF_LENGTH, HALF_WIDTH, AirHockey
from klimb.tasks.ball_stopping import BallStopping
from klimb.tasks.task import episode_seeds

BoolArray = NDArray[np.bool_]
#: What was found in each episode, by the name of the check; shape (N,) each.
Findings = dict[str, FloatArray]
#: Checks so many episodes of a scale from a seed.
Check = Callable[[int, float, int], Findings]

EPISODES = 10_000
SCALES = (0.1, 1.0, 5.0)  # of the weights, in initial standard deviations
GROUP = 100  # episodes in memory at once
THREADS = 2

AIR_HOCKEY_SENSORS = '<e_kinetic/><contact data="found" num="1"/>'
ENERGY, CONTACT = 1, 2  # columns of its sensors
PUCK_RADIUS, MALLET_RADIUS = 0.03165, 0.05

# the origins of the links are the ends of their capsules
BALL_STOPPING_SENSORS = (
    '<e_kinetic/><contact subtree1="arm" geom2="table" data="found" num="1"/>'
    + "".join(f'<framepos objtype="xbody" objname="link{number}"/>' for number in range(1, 8))
    + '<framepos objtype="site" objname="palm"/>'
    + "".join(f'<actuatorfrc actuator="joint{number}"/>' for number in range(1, 8))
)
TOUCH, BALL_ENERGY, ARM_ON_TABLE, LINK_ENDS, FORCES = 0, 4, 5, slice(6, 30), slice(30, 37)
LINKS = ("link1", "link2", "link3", "link4", "link5", "link6", "palm")
TABLE_TOP = 0.6
# the random ball of the paper's published code
WIDE = BallStopping("random", x_spread=0.1, speed_spread=1 / 3, direction_spread=np.pi / 18)

# Bars, in millimetres and joules
BARS = {
    # a puck whose centre is beyond a rim's surface is lost
    "puck in a rim, mm": 1e3 * PUCK_RADIUS,
    # the centres stay 55 mm apart; two that pass each other come to 0
    "puck in the mallet, mm": 1e3 * (PUCK_RADIUS + MALLET_RADIUS) - 55,
    # a quarter of the ball's radius; it comes out again where it went in
    "ball in the table, mm": 50.0,
    # the ball's centre stays 30 mm off the link's surface, and so on its side
    "ball in a link, mm": 170.0,
    # half of what the puck has at the start; puck and joint limits
    "energy from contacts, J": 1e-3,
    # the ball has .9 J at the start, and its weight presses 1 mJ into the table
    "energy from contacts with the ball, J": 2e-3,
    # an arm at full speed has 10 to 300 J
    "energy from contacts of arm and table, J": 0.02,
    # most arms of 1 std reach less than 20 J, of which this is 20 mJ
    "energy balance, %": 0.1,
    "energy balance, arm meets table, %": 0.1,
}


class Record(NamedTuple):
    """N episodes of T physics steps."""

    before: FloatArray
    """(N, T, nq + nv): states before each step."""
    after: FloatArray
    """(N, T, nq + nv): and after it."""
    sensors: FloatArray
    """(N, T, nsensordata): of the state before each step."""
    constraint: FloatArray
    """(N, T, nv): the force of contacts, joint limits and friction during each step."""
    failed: BoolArray
    """(N,): whether MuJoCo warned or a number is not finite."""


@cache
def watched(file: str, sensors: str) -> mujoco.MjModel:
    """A task's model with additional sensors."""
    text = (resources.files("klimb.tasks") / file).read_text("utf-8")
    return mujoco.MjModel.from_xml_string(text.replace("</sensor>", sensors + "</sensor>"))


def record(model: mujoco.MjModel, initial: FloatArray, controls: FloatArray, threads: int = 1) -> Record:
    """Simulate from `initial` (N, nq + nv) with `controls` (N, T, nu), one row per physics step."""
    batch = Batch(model, len(initial), threads)
    batch.qpos, batch.qvel = initial[:, : model.nq], initial[:, model.nq :]
    seen = batch.rollout(
        controls.shape[1], controls, record=("qpos", "qvel", "sensordata", "qfrc_constraint")
    )
    after = np.concatenate([seen["qpos"], seen["qvel"]], axis=2)
    before = np.concatenate([initial[:, None], after[:, :-1]], axis=1)
    failed = batch.warning[:, :, 1].any(axis=1) | ~np.isfinite(after).all(axis=(1, 2))
    return Record(before, after, seen["sensordata"], seen["qfrc_constraint"], failed)


# ------------------------------------------------------------------------------------------------- energy


def before_steps(power: FloatArray, step: float) -> FloatArray:
    """Work until the beginning of each step, (N, T), of the mean power during each step, (N, T)."""
    work = np.zeros_like(power)
    np.cumsum(step * power[:, :-1], axis=1, out=work[:, 1:])
    return work


def gains(sums: FloatArray, slack: BoolArray) -> FloatArray:
    """By how much `sums` (N, T) are above those at the last slack moment before, (N, T)."""
    last = np.zeros(slack.shape, dtype=np.intp)
    moments = np.where(slack, np.arange(slack.shape[1]), 0)
    np.maximum.accumulate(moments[:, :-1], axis=1, out=last[:, 1:])
    gain: FloatArray = sums - np.take_along_axis(sums, last, axis=1)
    return gain


def rises(balance: FloatArray, slack: BoolArray) -> FloatArray:
    """By how much `balance` (N, T) is above that of any slack moment before, (N, T)."""
    lowest = np.minimum.accumulate(np.where(slack, balance, np.inf), axis=1)
    rise: FloatArray = balance - lowest
    return rise


def worst(values: FloatArray, where: BoolArray) -> FloatArray:
    """Largest of each row (N, T) among those asked for, at least 0: (N,)."""
    largest: FloatArray = values.max(axis=1, where=where, initial=0.0)
    return largest


# -------------------------------------------------------------------------------------------- air hockey


def watch_air_hockey(
    initial: FloatArray, torques: FloatArray, threads: int = 1, substeps: int = air_hockey.SUBSTEPS
) -> Record:
    """Episodes from `initial` (N, 10) with `torques` (N, T, 3) per control step."""
    model = watched(air_hockey.MODEL, AIR_HOCKEY_SENSORS)
    return record(model, initial, torques.repeat(substeps, axis=1), threads)


def air_hockey_findings(seen: Record, torques: FloatArray) -> Findings:
    """Check what `watch_air_hockey` saw."""
    model = watched(air_hockey.MODEL, AIR_HOCKEY_SENSORS)
    step = model.opt.timestep
    puck, mallet = puck_of(seen.before), mallet_of(seen.before)
    across, along = np.abs(puck.imag), np.abs(puck.real)
    in_goal = (along > HALF_LENGTH) & (across < GOAL_HALF_WIDTH)
    playing = ~np.logical_or.accumulate(in_goal, axis=1)
    off_table = ((along > HALF_LENGTH) | (across > HALF_WIDTH)) & playing
    # the blocks at the table's ends are corners: positive is inside in both directions
    beyond, beside = along - HALF_LENGTH, across - GOAL_HALF_WIDTH
    outside = np.hypot(np.minimum(beyond, 0), np.minimum(beside, 0))
    end_rim = np.where(outside > 0, -outside, np.minimum(beyond, beside))
    rim = np.maximum(across - HALF_WIDTH, end_rim) + PUCK_RADIUS
    nearest = least_distance(puck - mallet)

    mean_speed = (seen.before[:, :, 5:] + seen.after[:, :, 5:]) / 2
    actuators = (torques.repeat(air_hockey.SUBSTEPS, axis=1) * mean_speed[:, :, :3]).sum(axis=2)
    energy = seen.sensors[:, :, ENERGY]
    balance = energy - before_steps(actuators, step)
    work = before_steps((seen.constraint * mean_speed).sum(axis=2), step)
    slack = (seen.sensors[:, :, CONTACT] == 0) & within_limits(model, seen.before[:, :, :3])
    percent = 100 * rises(balance, slack) / energy.max(axis=1, keepdims=True)
    return {
        "failed episodes": seen.failed.astype(float),
        "pucks that left the table": off_table.any(axis=1).astype(float),
        "puck in a rim, mm": 1e3 * worst(rim, playing),
        "puck in the mallet, mm": 1e3 * worst(PUCK_RADIUS + MALLET_RADIUS - nearest, playing),
        "energy from contacts, J": worst(gains(work, slack), playing),
        "energy balance, %": worst(percent, playing),
        "(goals)": (in_goal & (puck.real > 0)).any(axis=1).astype(float),
        "(mallet met puck)": (seen.sensors[:, :, 0] > 0).any(axis=1).astype(float),
    }


def puck_of(states: FloatArray) -> NDArray[np.complex128]:
    """Centre of the puck as a complex number."""
    centre: NDArray[np.complex128] = states[..., air_hockey.PUCK_X] + 1j * states[..., air_hockey.PUCK_Y]
    return centre


def mallet_of(states: FloatArray) -> NDArray[np.complex128]:
    """Centre of the mallet as a complex number: each link adds its length times e^(i angle)."""
    links = np.array([air_hockey.LINK_1, air_hockey.LINK_2, air_hockey.LINK_3])
    directions = np.exp(1j * np.cumsum(states[..., :3], axis=-1))
    centre: NDArray[np.complex128] = air_hockey.BASE_X + directions @ links
    return centre


def least_distance(way: NDArray[np.complex128]) -> FloatArray:
    """Least distance (N, T) to 0 of a point that moves straight from each place (N, T) to the next."""
    move = np.diff(way, axis=1, append=way[:, -1:])
    length = np.maximum(np.abs(move) ** 2, 1e-300)
    nearest = np.clip(-(way * move.conj()).real / length, 0, 1)
    distance: FloatArray = np.abs(way + nearest * move)
    return distance


# ------------------------------------------------------------------------------------------ ball stopping


def watch_ball_stopping(initial: FloatArray, references: FloatArray, threads: int = 1) -> Record:
    """Episodes from `initial` (N, 27) with joint references (N, T, 7)."""
    return record(watched("ball_stopping.xml", BALL_STOPPING_SENSORS), initial, references, threads)


def ball_stopping_findings(seen: Record) -> Findings:
    """Check what `watch_ball_stopping` saw."""
    model = watched("ball_stopping.xml", BALL_STOPPING_SENSORS)
    step = model.opt.timestep
    ball = seen.before[:, :, ball_stopping.BALL]
    x, y, z = ball[:, :, 0], ball[:, :, 1], ball[:, :, 2]
    radius, mass = model.geom("ball").size[0], model.body("ball").mass[0]
    going = np.logical_and.accumulate(z >= ball_stopping.LOWEST, axis=1)
    above = (x > 0) & (x < 1) & (np.abs(y) < 1.5)
    in_arm = depth_in_arm(model, ball, seen.sensors)

    speed, next_speed = seen.before[:, :, 14:], seen.after[:, :, 14:]
    mean_speed, change = (speed + next_speed) / 2, next_speed[:, :, :7] - speed[:, :, :7]
    # a controller's force is that of the velocity after the step, unless it is cut
    forces = seen.sensors[:, :, FORCES]
    cut = np.abs(forces) >= model.actuator_forcerange[:, 1]
    forces = forces + np.where(cut, 0, model.actuator_biasprm[:, 2] * change)
    actuators = (forces * mean_speed[:, :, :7]).sum(axis=2)
    # of the ball, as the arm's weight is compensated; half a step back, so that falling conserves energy
    potential = -model.opt.gravity[2] * mass * (z - step / 2 * speed[:, :, 9] - radius - TABLE_TOP)
    energy = seen.sensors[:, :, BALL_ENERGY] + potential
    balance = energy - before_steps(actuators, step)
    work = before_steps((seen.constraint * mean_speed).sum(axis=2), step)
    on_table = seen.sensors[:, :, ARM_ON_TABLE] > 0
    untouched = seen.sensors[:, :, TOUCH] == 0
    slack = untouched & ~on_table & within_limits(model, seen.before[:, :, :7])
    gain = gains(work, slack)
    percent = 100 * rises(balance, slack) / energy.max(axis=1, keepdims=True)
    # whether the arm met the table: since the last slack moment, and ever
    hammering = gains(np.cumsum(on_table, axis=1, dtype=np.float64), slack) > 0
    hammered = np.logical_or.accumulate(on_table, axis=1)
    return {
        "failed episodes": seen.failed.astype(float),
        "ball in the table, mm": 1e3 * worst(TABLE_TOP + radius - z, going & above),
        "ball in a link, mm": 1e3 * worst(in_arm, going[:, :-1]),
        "energy from contacts with the ball, J": worst(gain, going & ~hammering),
        "energy from contacts of arm and table, J": worst(gain, going & hammering),
        "energy balance, %": worst(percent, going & ~hammered),
        "energy balance, arm meets table, %": worst(percent, going & hammered),
        "(ball dropped)": (~going[:, -1]).astype(float),
        "(arm met ball)": ((seen.sensors[:, :, TOUCH] > 0) & going).any(axis=1).astype(float),
        "(arm met table)": (hammered & going).any(axis=1).astype(float),
    }


def depth_in_arm(model: mujoco.MjModel, ball: FloatArray, sensors: FloatArray) -> FloatArray:
    """How deep the ball (N, T, 3) is in the arm at most from each step to the next, (N, T - 1)."""
    ends = sensors[:, :, LINK_ENDS].reshape(*ball.shape[:2], 8, 3)
    first, axis = ends[:, :, :-1], np.diff(ends, axis=2)
    offset = ball[:, :, None] - first
    along = np.clip((offset * axis).sum(axis=3) / (axis * axis).sum(axis=3), 0, 1)
    distance = np.linalg.norm(offset - along[..., None] * axis, axis=3)
    distance -= np.array([model.geom(link).size[0] for link in LINKS])
    # the base is an upright cylinder that stands still
    base, size = model.geom("base"), model.geom("base").size
    from_base = ball - (model.body("arm").pos + base.pos)
    beside = np.hypot(from_base[:, :, 0], from_base[:, :, 1]) - size[0]
    over = np.abs(from_base[:, :, 2]) - size[1]
    outside = np.hypot(np.maximum(beside, 0), np.maximum(over, 0)) + np.minimum(np.maximum(beside, over), 0)
    distance = np.concatenate([distance, outside[:, :, None]], axis=2)
    # a distance changes by at most the way that both go, the links' ends going farthest
    moves = np.linalg.norm(np.diff(ends, axis=1), axis=3)
    moves = np.concatenate(
        [np.maximum(moves[:, :, :-1], moves[:, :, 1:]), np.zeros((*moves.shape[:2], 1))], 2
    )
    moves += np.linalg.norm(np.diff(ball, axis=1), axis=2)[:, :, None]
    least = (distance[:, :-1] + distance[:, 1:] - moves) / 2
    depth: FloatArray = model.geom("ball").size[0] - least.min(axis=2)
    return depth


def within_limits(model: mujoco.MjModel, angles: FloatArray) -> BoolArray:
    """Whether no joint is at its limit: (..., joints) -> (...)."""
    inside: BoolArray = (np.abs(angles) < model.jnt_range[: angles.shape[-1], 1]).all(axis=-1)
    return inside


# ------------------------------------------------------------------------------------------- the episodes


def random_weights(task: AirHockey | BallStopping, count: int, scale: float, seed: int) -> FloatArray:
    """Parameters (count, n) of `scale` times the initial standard deviation."""
    weights = np.random.default_rng(seed).standard_normal((count, task.n_parameters))
    return scale * task.initial_std * weights


def random_air_hockey(
    task: AirHockey, count: int, scale: float, seed: int, threads: int = THREADS
) -> Findings:
    """Check `count` episodes with random weights."""
    torques = air_hockey.torques(task.policy.trajectory(random_weights(task, count, scale, seed)))
    seeds = episode_seeds(seed, count)
    starts = [air_hockey.initial_state(task.puck, np.random.default_rng(episode)) for episode in seeds]
    return air_hockey_findings(watch_air_hockey(np.array(starts), torques, threads), torques)


def random_ball_stopping(
    task: BallStopping, count: int, scale: float, seed: int, threads: int = THREADS
) -> Findings:
    """Check `count` episodes with random weights."""
    actions = task.policy.trajectory(random_weights(task, count, scale, seed))
    starts = [task.initial_state(np.random.default_rng(episode)) for episode in episode_seeds(seed, count)]
    references = ball_stopping.joint_references(actions)
    return ball_stopping_findings(watch_ball_stopping(np.array(starts), references, threads))


def checked(title: str, checks: Sequence[Check], console: Console) -> list[list[Findings]]:
    """What is found at each scale; the episodes are shared evenly among scales and checks."""
    found: list[list[Findings]] = [[] for _ in SCALES]
    cells = np.array_split(np.arange(EPISODES), len(SCALES) * len(checks))
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task(title, total=EPISODES)
        for cell, members in enumerate(cells):
            place, variant = divmod(cell, len(checks))
            for first in range(0, members.size, GROUP):
                count, seed = min(GROUP, members.size - first), int(members[first])
                found[place].append(checks[variant](count, SCALES[place], seed))
                progress.advance(bar, count)
    return found


def report(console: Console, title: str, found: list[list[Findings]]) -> None:
    """Print the findings at each scale: the worst of every check, or how many episodes."""
    columns = ("", *(f"{scale:g} std" for scale in SCALES), "bar", "episodes beyond")
    table = Table(*columns, title=title, title_justify="left")
    for name in found[0][0]:
        values = [np.concatenate([findings[name] for findings in scale]) for scale in found]
        if name in BARS:
            beyond = sum(int((value >= BARS[name]).sum()) for value in values)
            table.add_row(name, *(f"{value.max():.3g}" for value in values), f"{BARS[name]:.3g}", str(beyond))
        else:
            counted = [int(value.sum()) for value in values]
            bars = ("", "") if name.startswith("(") else ("0", str(sum(counted)))
            table.add_row(name, *map(str, counted), *bars)
    console.print(table)


def main() -> None:
    console = Console(width=120)
    pucks = [AirHockey("incoming"), AirHockey("random"), AirHockey("still")]
    balls = [BallStopping(), BallStopping("random"), WIDE]
    for title, checks in (
        ("AirHockey, pucks incoming, random and still", [partial(random_air_hockey, task) for task in pucks]),
        (
            "BallStopping, fixed, random and wide random ball",
            [partial(random_ball_stopping, task) for task in balls],
        ),
    ):
        report(console, f"{title}: {EPISODES} random episodes, worst", checked(title, checks, console))


if __name__ == "__main__":
    main()
