"""Learn in a Gymnasium environment of your own, with a policy of klimb's, in two processes.

A pendulum hangs down and is to be swung up by a weak motor. The policy is a movement primitive: torques over
time that are fixed before the episode begins.

Run it with: python examples/own_environment.py
"""

import math
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

import klimb
from klimb.evaluation import Workers
from klimb.tasks.gymnasium import gymnasium_task


class SwingUp(gymnasium.Env[NDArray[np.float64], NDArray[np.float64]]):
    """A pendulum of 1 kg and 1 m, 5 s long; its motor can lift it by 15 degrees only."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-100.0, 100.0, (2,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Hang down, at rest but for a little."""
        super().reset(seed=seed)
        self.angle, self.rate = self.np_random.normal(0.0, 0.01, 2)
        self.was_up = False
        return np.array([self.angle, self.rate]), {}

    def step(self, action: NDArray[np.float64]) -> Any:
        """Move for .05 s; the reward is the height of the tip, from -1 to 1."""
        for _ in range(5):
            torque = 2.5 * float(action[0]) - 0.1 * self.rate
            self.rate += 0.01 * (torque - 9.81 * math.sin(self.angle))
            self.angle += 0.01 * self.rate
        height = -math.cos(self.angle)
        self.was_up = self.was_up or height > 0.95
        return np.array([self.angle, self.rate]), height, False, False, {"is_success": self.was_up}


def main() -> None:
    task = gymnasium_task(SwingUp, policy="promp", n_bases=12, width=0.003, horizon=100, initial_std=1.0)
    algorithm = klimb.creps(epsilon=0.5, kappa=0.5)
    print(f"{task.n_parameters} parameters, 50 episodes per update")
    with Workers(task, 2) as workers:  # a task like any other; its returns are the same to the last bit
        result = klimb.maximize(
            workers, algorithm, mean=np.zeros(12), std=task.initial_std, episodes=2500, batch=50, seed=0
        )
        _, success = workers.evaluate(np.tile(result.mean, (100, 1)), seed=1, return_success=True)
    for row in result.curve[9::10]:
        print(f"{int(row['episodes']):5d} episodes: mean return {row['mean_return']:6.1f}")
    print(f"{success.mean():.0%} of 100 pendulums have been upright.")


if __name__ == "__main__":  # worker processes import this file, and must not start their own
    main()
