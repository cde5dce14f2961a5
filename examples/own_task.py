"""Learn a task of your own: a class with `evaluate`, for all that can run many episodes at once.

A cart of 1 kg on a rail is pushed to the origin by u = -k x - d v; the gains k and d are learned. The
simulation is vectorised over the episodes of a batch, which is why this is a class and not a function.

Run it with: python examples/own_task.py
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

import klimb
from klimb.check import check_task
from klimb.tasks import episode_seeds


class Cart:
    """Push a cart to the origin and hold it there; what klimb.tasks.Task asks for, and nothing else."""

    n_parameters = 2
    optimum = None
    initial_std = 1.0

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> NDArray[np.float64]:
        """Give the returns (N,) of the gains theta (N, 2)."""
        gains = np.asarray(theta, dtype=np.float64)
        if gains.ndim != 2 or gains.shape[1] != self.n_parameters:
            raise ValueError(f"theta must have shape (N, {self.n_parameters}), but it has {gains.shape}.")
        # one seed per episode: the same episode has the same return in any batch and any process
        seeds = episode_seeds(seed, len(gains))
        x = np.array([np.random.default_rng(s).uniform(0.5, 1.5) for s in seeds])
        v, cost = np.zeros_like(x), np.zeros_like(x)
        for _ in range(250):  # 5 s
            u = np.clip(-gains[:, 0] * x - gains[:, 1] * v, -5.0, 5.0)
            cost += 0.02 * (x**2 + 0.1 * u**2)
            v = v + 0.02 * u
            x = np.clip(x + 0.02 * v, -10.0, 10.0)
        return -cost


def main() -> None:
    task = Cart()
    print("Does the task keep its promises? (also: klimb check own_task:Cart)")
    for status, name, detail in check_task(task):
        print(f"  {status:8s}{name:15s}{detail}")

    algorithm = klimb.creps(epsilon=0.5, kappa=0.1)
    result = klimb.maximize(
        task, algorithm, mean=np.zeros(2), std=task.initial_std, episodes=1000, batch=25, seed=0
    )
    # of the endless episode without limits: k = sqrt(10), d = sqrt(2 k)
    print(f"\nLearned gains {result.mean.round(2)}; linear-quadratic theory says [3.16 2.51].")
    for name, gains in (("learned", result.mean), ("theory", np.array([3.162, 2.515]))):
        returns = task.evaluate(np.tile(gains, (500, 1)), seed=1)
        print(f"Return of the {name} gains: {returns.mean():.4f}")


if __name__ == "__main__":
    main()
