"""Discrete dynamic movement primitive: a spring that is pulled to a goal, bent on its way by learned weights.

| symbol | meaning |
|---|---|
| y, v | position and scaled velocity of a joint |
| g, s | goal and start |
| tau | duration of the movement |
| x | phase of the canonical system, from 1 towards 0 |
| alpha, beta | stiffness; beta = alpha / 4 makes the spring critically damped |
| f | forcing term |

    tau v' = alpha (beta (g + f - y) - v)
    tau y' = v
    tau x' = -alpha/3 x
    f      = x sum_b psi_b(x) weight_b / sum_b psi_b(x)

Two things differ from the reference, for the sake of black-box search. f stands inside the spring's bracket,
so that a weight is a displacement of the goal and has the unit of a position, as the goal has: one standard
deviation serves both. And f is not multiplied by g - s, which would switch off all weights wherever a learned
goal comes near the start.

With a given duration the equations are linear in start, goal and weights. So the response to each of them is
integrated once, and the movement of any parameter vector is a weighted sum of responses.

Reference: A. J. Ijspeert, J. Nakanishi, H. Hoffmann, P. Pastor, S. Schaal, "Dynamical Movement Primitives:
Learning Attractor Models for Motor Behaviors", Neural Computation 25, 2013.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, positive, vector, whole
from klimb.policies.policy import mix, rows, step_within


def phase_bases(x: FloatArray, n_bases: int, decay: float) -> FloatArray:
    """Normalised bases psi_b(x) / sum psi at phases x, shape (*x.shape, n_bases).

    The centres are those phases that lie evenly in time; a bump's standard deviation is .55 of the distance
    to the next centre, so that neighbours overlap alike everywhere.
    """
    centres = np.exp(-decay * np.linspace(0, 1, n_bases))
    gaps = -np.diff(centres) if n_bases > 1 else np.ones(1)
    deviations = 0.55 * (np.append(gaps, gaps[-1]) if n_bases > 1 else gaps)
    exponent = -0.5 * ((x[..., None] - centres) / deviations) ** 2
    # relative to the largest, so that far from all centres there is no 0 / 0
    psi = np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    bases: FloatArray = psi / psi.sum(axis=-1, keepdims=True)
    return bases


def _joints(name: str, value: float | Sequence[float] | FloatArray, n_joints: int) -> tuple[float, ...]:
    array = vector(name, np.atleast_1d(np.asarray(value)))
    if array.size not in (1, n_joints):
        raise ValueError(f"{name} must be one number or one per joint, {n_joints}, but {array.size} came.")
    return tuple(np.broadcast_to(array, n_joints).tolist())


@dataclass(frozen=True)
class DMP:
    """Open-loop movement of several joints from a start to a goal; the actions are positions.

    Parameters
    ----------
    n_joints
        Length of an action.
    n_bases
        Basis functions per joint.
    horizon
        Control steps of an episode; the first action is the start.
    start
        Start position of all joints, or of each.
    goal
        Goal position of all joints, or of each; None if it is learned.
    duration
        Duration tau of the movement in control steps; None: the whole episode, horizon - 1. At tau, a joint
        without weights has 5e-5 of its way left; a shorter duration leaves it time to rest at the goal.
    stiffness
        The spring's alpha.

    Notes
    -----
    A parameter vector is the weights (n_joints, n_bases), row by row, and then, if `goal` is None, the goals
    (n_joints,). See the module for the equations.
    """

    n_joints: int
    n_bases: int
    horizon: int
    start: float | Sequence[float] | FloatArray = 0.0
    goal: float | Sequence[float] | FloatArray | None = None
    duration: float | None = None
    stiffness: float = 25.0

    def __post_init__(self) -> None:
        whole("n_joints", self.n_joints, 1)
        whole("n_bases", self.n_bases, 1)
        whole("horizon", self.horizon, 2)
        for name, value in (("stiffness", self.stiffness), ("duration", self.duration)):
            if value is not None and not math.isfinite(positive(name, value)):
                raise ValueError(f"{name} must be finite, but {value!r} came.")
        # tuples: a frozen setting must neither change with the caller's array nor make `==` ambiguous
        object.__setattr__(self, "start", _joints("start", self.start, self.n_joints))
        if self.goal is not None:
            object.__setattr__(self, "goal", _joints("goal", self.goal, self.n_joints))

    @property
    def n_parameters(self) -> int:
        """One weight per joint and basis, and one goal per joint if goals are learned."""
        return self.n_joints * (self.n_bases + (self.goal is None))

    @property
    def n_actions(self) -> int:
        """One position per joint."""
        return self.n_joints

    @cached_property
    def responses(self) -> FloatArray:
        """Movement from 0 that each weight, and last the goal, causes at value 1; (horizon, n_bases + 1)."""
        alpha, beta, decay = self.stiffness, self.stiffness / 4, self.stiffness / 3
        tau = float(self.horizon - 1) if self.duration is None else float(self.duration)
        # classical Runge-Kutta; a step resolves both the spring and the narrowest bump
        substeps = math.ceil(max(20 * alpha, 10 * self.n_bases) / tau)
        h = 1 / (substeps * tau)
        count = (self.horizon - 1) * substeps
        # the input does not depend on the state: all of it at once, at the steps and halfway between them
        x = np.exp(-decay * 0.5 * h * np.arange(2 * count + 1))
        pull = np.ones((2 * count + 1, self.n_bases + 1))
        pull[:, :-1] = x[:, None] * phase_bases(x, self.n_bases, decay)

        def slope(state: FloatArray, target: FloatArray) -> FloatArray:
            y, v = state
            return np.stack([v, alpha * (beta * (target - y) - v)])

        state = np.zeros((2, self.n_bases + 1))
        responses = np.zeros((self.horizon, self.n_bases + 1))
        for step in range(count):
            before, between, after = pull[2 * step : 2 * step + 3]
            k1 = slope(state, before)
            k2 = slope(state + h / 2 * k1, between)
            k3 = slope(state + h / 2 * k2, between)
            k4 = slope(state + h * k3, after)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
            if (step + 1) % substeps == 0:
                responses[(step + 1) // substeps] = state[0]
        responses.setflags(write=False)
        return responses

    def trajectory(self, theta: ArrayLike) -> FloatArray:
        """Positions of whole episodes, shape (N, horizon, n_joints), of parameters (N, n)."""
        positions = mix(self._loads(theta), self.responses)
        positions += np.array(self.start)
        return positions

    def act(self, theta: ArrayLike, observations: ArrayLike | None, step: int) -> FloatArray:
        """Positions (N, n_joints) at control step `step`; the observations are ignored."""
        step = step_within(step, self.horizon)
        positions = mix(self._loads(theta), self.responses[step : step + 1])
        positions += np.array(self.start)
        return positions[:, 0]

    def _loads(self, theta: ArrayLike) -> FloatArray:
        """Factor of each response, shape (N, n_joints, n_bases + 1): the weights, and the way to the goal."""
        theta = rows("theta", theta, self.n_parameters)
        n_weights = self.n_joints * self.n_bases
        loads = np.empty((len(theta), self.n_joints, self.n_bases + 1))
        loads[:, :, :-1] = theta[:, :n_weights].reshape(-1, self.n_joints, self.n_bases)
        # start and goal at the same place are a rest: only their difference moves the joint
        goal = theta[:, n_weights:] if self.goal is None else np.array(self.goal)
        loads[:, :, -1] = goal - np.array(self.start)
        return loads
