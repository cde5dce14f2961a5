"""Many episodes of one MuJoCo model at once, and one episode at a time for an environment.

`roll_out` runs a batch of open-loop episodes on any number of threads, by :class:`Simulations`, which holds a
:class:`mujoco.batch.Batch`. Each episode is a row of MuJoCo's integration state (position, velocity, controls
and the solver's warm start), so nothing leaks from one episode to the next, and the numbers are those of a
plain loop over ``mj_step`` to the last bit: whatever the number of threads, the size of the batch or the
order of its rows. Episodes are simulated some control steps at a time; the task scores each segment and says
which episodes go on, so that memory stays bounded and an episode that is over costs nothing more.

A simulation that goes wrong is reported, never repaired: MuJoCo puts a diverged simulation back to its start
and carries on, which would turn a broken episode into a good-looking return.

About sensors: ``mj_step`` computes them before it integrates. So row k of `sensors` belongs to the state
*before* substep k, and a contact sensor says whether the contact acted during that substep; row k of `states`
is the state after it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources

import numpy as np
from numba import cfunc
from numpy.typing import NDArray

from klimb._validation import FloatArray
from klimb.tasks.film import GL_HELP, Film, Frame, chosen_times

try:
    import mujoco
    from mujoco.batch import Batch
except AttributeError as error:  # MuJoCo loads the OpenGL that MUJOCO_GL names at once, needed or not
    raise ImportError(
        f"mujoco does not start with MUJOCO_GL={os.environ.get('MUJOCO_GL')!r}, because that OpenGL is not "
        "installed; unset MUJOCO_GL: learning needs no OpenGL."
    ) from error

BoolArray = NDArray[np.bool_]
Rows = NDArray[np.intp]

#: Called with the episodes (M,), the number of the segment's first control step, and what happened in it:
#: states (M, K, nq + nv) and sensors (M, K, nsensordata) of its K physics steps.
#: Returns (M,): does the episode go on?
Score = Callable[[Rows, int, FloatArray, FloatArray], BoolArray]

# Recorded numbers of one segment, at most: little enough to stay in a cache, enough to keep threads busy.
_SEGMENT_BYTES = 16 * 2**20
_STATE = int(mujoco.mjtState.mjSTATE_QPOS) | int(mujoco.mjtState.mjSTATE_QVEL)


@cfunc("float64()", cache=True)
def _stopped() -> float:
    """Time of a clock that stands still."""
    return 0.0


@contextmanager
def untimed() -> Iterator[None]:
    """Keep MuJoCo from looking at the clock, which it does many times in a step to time its stages.

    On a small model that is a fifth of a step. A clock that somebody has set stays; MuJoCo's own is back
    afterwards.
    """
    if mujoco.get_mjcb_time() is not None:
        yield
        return
    mujoco.set_mjcb_time(_stopped.ctypes)
    try:
        yield
    finally:
        mujoco.set_mjcb_time(None)


@functools.cache
def load_model(file: str, *, drawn: bool = True) -> mujoco.MjModel:
    """Compile the model that an XML file beside the task modules describes; once, so never change it.

    Not `drawn`, it lacks what is only to be looked at: a step costs less, and no number changes.
    """
    spec = mujoco.MjSpec.from_string((resources.files("klimb.tasks") / file).read_text("utf-8"))
    spec.compiler.discardvisual = not drawn
    return spec.compile()


def roll_out(
    model: mujoco.MjModel,
    initial: FloatArray,
    controls: FloatArray,
    score: Score,
    *,
    substeps: int = 1,
    segment: int = 10,
    threads: int = 1,
) -> BoolArray:
    """Simulate episodes with given controls; hand what happens to `score`, segment by segment.

    Parameters
    ----------
    model
        What is simulated; it is not modified.
    initial
        (N, nq + nv): positions and velocities at the start. Everything else starts at zero.
    controls
        (N, T, nu): one row per control step, held for `substeps` physics steps.
    score
        See :data:`Score`.
    substeps
        Physics steps per control step.
    segment
        Control steps between two calls of `score`.
    threads
        Threads that simulate; the result does not depend on it.

    Returns
    -------
    numpy.ndarray
        (N,): True where the simulation failed (MuJoCo warned, or a state is not finite). Such an episode has
        no valid return, whatever `score` saw of it, even of its end earlier in the segment; it is not
        simulated any further.
    """
    count, horizon, _ = controls.shape
    failed = np.zeros(count, dtype=np.bool_)
    per_episode = 8 * min(segment, horizon) * substeps * (model.nq + model.nv + model.nsensordata + model.nu)
    chunk = max(threads, _SEGMENT_BYTES // per_episode)
    for first in range(0, count, chunk):
        rows = np.arange(first, min(first + chunk, count))
        simulations = Simulations(model, rows.size, substeps, min(threads, rows.size))
        simulations.reset(rows - first, initial[rows])
        for start in range(0, horizon, segment):
            states, sensors, broken = simulations.step(rows - first, controls[rows, start : start + segment])
            failed[rows] = broken
            rows = rows[score(rows, start, states, sensors) & ~broken]
            if rows.size == 0:
                break
    return failed


class Simulations:
    """Episodes side by side, some control steps at a time.

    Parameters
    ----------
    model
        What is simulated; it is not modified.
    count
        How many episodes.
    substeps
        Physics steps per control step.
    threads
        Threads that simulate; no number depends on it.
    """

    def __init__(self, model: mujoco.MjModel, count: int, substeps: int = 1, threads: int = 1) -> None:
        self.substeps = substeps
        self._positions = model.nq
        self._batch = Batch(model, count, threads)
        self._warnings = np.zeros(count, dtype=np.int64)

    def reset(self, rows: Rows, initial: FloatArray) -> None:
        """Start the episodes `rows` (M,) from positions and velocities (M, nq + nv), all else being zero."""
        self._batch.reset(rows.astype(np.int32), stage=int(mujoco.mjtStage.mjSTAGE_NONE))
        self._batch.qpos[rows] = initial[:, : self._positions]
        self._batch.qvel[rows] = initial[:, self._positions :]
        self._warnings[rows] = self._counted(rows)

    def step(self, rows: Rows, controls: FloatArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Go on with the episodes `rows` (M,) by the controls (M, T, nu) of their next T control steps.

        Returns
        -------
        states, sensors
            (M, K, ...) of the K = T * substeps physics steps, as for :data:`Score`.
        broken
            (M,): whether MuJoCo has warned since the reset, or a state is not finite.
        """
        held = controls.repeat(self.substeps, axis=1)
        with untimed():
            record = self._batch.rollout(
                held.shape[1], held, record=(_STATE, "sensordata"), ids=rows.astype(np.int32)
            )
        states, sensors = record[_STATE], record["sensordata"]
        warned = self._counted(rows) > self._warnings[rows]
        return states, sensors, warned | ~np.isfinite(states[:, -1]).all(axis=1)

    def _counted(self, rows: Rows) -> NDArray[np.int64]:
        """How many warnings MuJoCo has given of any kind."""
        total: NDArray[np.int64] = self._batch.warning[rows, :, 1].sum(axis=1, dtype=np.int64)
        return total


def film_of(
    model: mujoco.MjModel, path: FloatArray, step_rate: float, camera: str, width: int, height: int
) -> Film:
    """Film positions (T + 1, nq) that are `step_rate` per second apart."""
    times, rate = chosen_times(len(path) - 1, step_rate, 30.0)
    try:
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # whatever the platform's OpenGL raises
        raise RuntimeError(f"{GL_HELP}. What it said: {error}") from error

    def frames() -> Iterator[Frame]:
        data = mujoco.MjData(model)
        with renderer:
            for time in times:
                data.qpos[:] = path[time]
                mujoco.mj_forward(model, data)
                renderer.update_scene(data, camera)
                yield renderer.render().copy()

    return Film(frames(), len(times), rate)


class Simulation:
    """One episode, step by step: what an environment holds; the same numbers as `roll_out`.

    Parameters
    ----------
    model
        What is simulated; it is not modified.
    substeps
        Physics steps per control step.

    Attributes
    ----------
    model, data
        MuJoCo's own, for a renderer.
    failed
        Has anything gone wrong since the last reset?
    """

    def __init__(self, model: mujoco.MjModel, substeps: int = 1) -> None:
        self.model = model
        self.data = mujoco.MjData(model)
        self.substeps = substeps
        self.failed = False

    def reset(self, initial: FloatArray) -> None:
        """Start from positions and velocities (nq + nv,) and forget everything else."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:] = initial[: self.model.nq]
        self.data.qvel[:] = initial[self.model.nq :]
        mujoco.mj_forward(self.model, self.data)  # a renderer needs the bodies' places, also before a step
        self.data.qacc_warmstart[:] = 0.0  # which mj_forward has set
        self.failed = False

    def step(self, control: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Hold `control` (nu,) for one control step; states and sensors of its substeps as in `roll_out`."""
        states = np.empty((self.substeps, self.model.nq + self.model.nv))
        sensors = np.empty((self.substeps, self.model.nsensordata))
        self.data.ctrl[:] = control
        with untimed():
            for state, sensor in zip(states, sensors, strict=True):
                mujoco.mj_step(self.model, self.data)
                state[: self.model.nq] = self.data.qpos
                state[self.model.nq :] = self.data.qvel
                sensor[:] = self.data.sensordata
        warned = any(warning.number for warning in self.data.warning)
        self.failed = self.failed or warned or not bool(np.isfinite(states[-1]).all())
        return states, sensors
