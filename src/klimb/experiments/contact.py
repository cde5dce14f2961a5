"""Does the arm reach the ball? Asked of BallStopping, whose success says only whether it was stopped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from klimb._validation import FloatArray
from klimb.tasks import Task


def rate(task: Task, theta: FloatArray, seeds: NDArray[np.uint64]) -> float | None:
    """Share of the episodes (N, n) in which the arm touches the ball; None for all other tasks."""
    if type(task).__name__ != "BallStopping":
        return None
    from klimb.tasks import ball_stopping as ball
    from klimb.tasks._mujoco import BoolArray, Rows, roll_out

    assert isinstance(task, ball.BallStopping)
    memory = ball.no_memory(len(theta))
    initial = np.array([task.initial_state(np.random.default_rng(seed)) for seed in seeds])

    def score(rows: Rows, start: int, states: FloatArray, sensors: FloatArray) -> BoolArray:
        verdict = ball.judge(states, sensors, ball.Memory(memory.touched[rows], memory.still[rows]))
        memory.touched[rows], memory.still[rows] = verdict.memory
        going: BoolArray = (verdict.outcome == ball.GOING) & ~verdict.memory.touched
        return going

    references = ball.joint_references(task.policy.trajectory(theta))
    roll_out(ball.model(), initial, references, score, segment=ball.SEGMENT, threads=task.threads)
    return float(memory.touched.mean())
