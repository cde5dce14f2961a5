"""klimb's tasks as Gymnasium environments, to be controlled step by step with any policy or library.

    import gymnasium, klimb
    env = gymnasium.make("klimb/ShipSteering-v0")        # or "klimb:klimb/ShipSteering-v0" without the import

Importing klimb registers them. (Gymnasium has had no entry points for that since 1.0.) A simulator is loaded
when its environment is made, not before.

Dynamics and rewards are the tasks' own: the rewards of an episode, discounted as the task discounts, sum up
to what ``task.evaluate`` returns for the same policy and ``reset(seed=the episode's seed)``. Rewards
themselves are not discounted here; time limits are Gymnasium's (``make(..., max_episode_steps=...)``).

Actions lie in [-1, 1] or less, as learners like it. Where a task's own range is wider, one unit of action is
:data:`ROBOT_SCALE` or :data:`FUNCTION_SCALE` units of the task: powers of two, which change no bit. An action
beyond the space is not clipped; it is treated as the task treats it.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, numbers

Environment = gymnasium.Env[Any, Any]
Reset = tuple[FloatArray, dict[str, Any]]
Step = tuple[FloatArray, float, bool, bool, dict[str, Any]]

# The robots' torques and references for movements of the initial search distribution are within +-4 of their
# units; AirHockey's motors saturate at 3.33.
ROBOT_SCALE = 4.0
# The optima of all test functions lie within +-4; twice that is room to err.
FUNCTION_SCALE = 8.0

# Registered with the time limit of the task, which is spelled out, as importing the task takes its time.
ENVIRONMENTS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "klimb/LQR-v0": ("LQREnvironment", 50, {}),
    "klimb/ShipSteering-v0": ("ShipSteeringEnvironment", 5000, {}),
    "klimb/AirHockey-v0": ("AirHockeyEnvironment", 120, {}),
    "klimb/BallStopping-v0": ("BallStoppingEnvironment", 750, {}),
    "klimb/Sphere-v0": ("FunctionEnvironment", None, {"function": "sphere"}),
    "klimb/Rosenbrock-v0": ("FunctionEnvironment", None, {"function": "rosenbrock"}),
    "klimb/Rastrigin-v0": ("FunctionEnvironment", None, {"function": "rastrigin"}),
    "klimb/StyblinskiTang-v0": ("FunctionEnvironment", None, {"function": "styblinski-tang"}),
    "klimb/Himmelblau-v0": ("FunctionEnvironment", None, {"function": "himmelblau"}),
}


def register() -> None:
    """Tell Gymnasium of klimb's environments; again and again does no harm."""
    for name, (creator, limit, options) in ENVIRONMENTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, f"{__name__}:{creator}", max_episode_steps=limit, kwargs=options)


def _box(high: ArrayLike, size: int | None = None) -> Box:
    """From -high to high; float64, so that nothing is rounded on its way to the task."""
    bounds = np.full(size, high) if size is not None else numbers("high", high)
    return Box(-bounds, bounds, dtype=np.float64)


def _action(env: Environment, action: ArrayLike) -> FloatArray:
    array = numbers("action", action)
    if array.shape != env.action_space.shape:
        raise ValueError(f"action must have shape {env.action_space.shape}, but its shape is {array.shape}.")
    return array


class LQREnvironment(Environment):
    """The LQR; `options` are those of :class:`klimb.tasks.lqr.LQR`. Observed is the state."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, **options: Any) -> None:
        from klimb.tasks.lqr import LQR

        self.task = LQR(**options)
        self.observation_space = _box(1.0, self.task.n_states)
        self.action_space = _box(1.0, self.task.n_states)
        self._state = np.full(self.task.n_states, 0.9)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        self._state = self.task.start_states([episode_seed])[0]
        return self._state.copy(), {}

    def step(self, action: ArrayLike) -> Step:
        """Push every state by its action."""
        self._state, reward = self.task.step(self._state, _action(self, action))
        return self._state.copy(), float(reward), False, False, {}


class ShipSteeringEnvironment(Environment):
    """The ship; `options` are those of :class:`klimb.tasks.ship_steering.ShipSteering`.

    Observed are x, y, heading and turning rate; the action is the turning rate that is asked for, within
    +-pi/12.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, **options: Any) -> None:
        from klimb.tasks import ship_steering

        ship = ship_steering.SHIP
        self.task = ship_steering.ShipSteering(**options)
        self._task_step = ship_steering.step
        low = np.array([0.0, 0.0, -math.pi, -ship.rate_limit])
        high = np.array([ship.field, ship.field, math.pi, ship.rate_limit])
        self.observation_space = Box(low, high, dtype=np.float64)
        self.action_space = _box(ship.rate_limit, 1)
        self._state = np.array(ship_steering.FIXED_START)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        episode_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        self._state = self.task.start_states([episode_seed])[0]
        return self._state.copy(), {}

    def step(self, action: ArrayLike) -> Step:
        """Sail for one control step."""
        (rate,) = _action(self, action)
        self._state, reward, terminated, success = self._task_step(self._state, rate)
        return self._state.copy(), reward, terminated, False, {"is_success": success}


class AirHockeyEnvironment(Environment):
    """Air hockey; `options` are those of :class:`klimb.tasks.air_hockey.AirHockey`.

    Observed are the positions of shoulder, elbow, wrist, puck x and puck y, then their velocities; the
    actions are the torques of the three joints, 12 N m per unit, limited to 10. If the simulation breaks
    down, the reward is NaN and the episode over.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, **options: Any) -> None:
        from klimb.tasks import air_hockey

        self.task = air_hockey.AirHockey(**options)
        self._goal = air_hockey.GOAL
        self._game = air_hockey.AirHockeyGame(self.task.puck)
        self.observation_space = _box([2 * math.pi] * 3 + [2.0] * 2 + [1e3] * 5)
        self.action_space = _box(1.0, 3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        return self._game.reset(self.np_random).copy(), {}

    def step(self, action: ArrayLike) -> Step:
        """Apply torques for one control step."""
        state, reward, over = self._game.step(ROBOT_SCALE * _action(self, action))
        return state.copy(), reward, over, False, {"is_success": over and self._game.outcome == self._goal}


class BallStoppingEnvironment(Environment):
    """Ball stopping; `options` are those of :class:`klimb.tasks.ball_stopping.BallStopping`.

    Observed are the positions and velocities of the seven joints, position and orientation (a quaternion) of
    the ball; the actions are the joints' references, 1.2 rad per unit around the start posture. If the
    simulation breaks down, the reward is NaN and the episode over.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, **options: Any) -> None:
        from klimb.tasks import ball_stopping

        self.task = ball_stopping.BallStopping(**options)
        self._stopped = ball_stopping.STOPPED
        self._episode = ball_stopping.BallStoppingEpisode(self.task)
        self.observation_space = _box([2 * math.pi] * 7 + [1e3] * 7 + [100.0] * 3 + [1.0 + 1e-9] * 4)
        self.action_space = _box(1.0, 7)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        return self._episode.reset(self.np_random), {}

    def step(self, action: ArrayLike) -> Step:
        """Move for one control step."""
        episode = self._episode
        observation, reward, over = episode.step(ROBOT_SCALE * _action(self, action))
        success = not episode.failed and episode.outcome == self._stopped
        return observation, reward, over, False, {"is_success": success}


class FunctionEnvironment(Environment):
    """A test function, in episodes of one step.

    `options` are those of :class:`klimb.tasks.functions.Function`.

    The action is the parameter vector over :data:`FUNCTION_SCALE`; observed is always 0.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, **options: Any) -> None:
        from klimb.tasks.functions import Function

        self.task = Function(**options)
        self.observation_space = _box(1.0, 1)
        self.action_space = _box(1.0, self.task.n_parameters)
        self._episode_seed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        super().reset(seed=seed)
        self._episode_seed = int(self.np_random.integers(2**63)) if seed is None else seed
        return np.zeros(1), {}

    def step(self, action: ArrayLike) -> Step:
        """Evaluate the function, which ends the episode."""
        theta = FUNCTION_SCALE * _action(self, action)
        (reward,) = self.task.evaluate(theta[None], [self._episode_seed])
        return np.zeros(1), float(reward), True, False, {}
