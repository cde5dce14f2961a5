"""Learn with a function of your own: one parameter vector and one seed in, one return out.

A ball is thrown at a basket 4 m away, at a height of 1 m, in gusty wind. Parameters 3 and 11 are the throw's
speed and angle (as corrections of a first guess); eighteen more have no effect, which klimb finds out.

Run it with: python examples/own_function.py
"""

import math

import numpy as np
from numpy.typing import NDArray

import klimb
from klimb.tasks import task_from_function

GRAVITY, DISTANCE, HEIGHT = 9.81, 4.0, 1.0


def throw(theta: NDArray[np.float64], seed: int) -> float:
    """Return minus the distance (m) by which the ball misses the basket."""
    wind = np.random.default_rng(seed).normal(0.0, 0.2)  # all randomness comes from the episode's seed
    speed, angle = 5.0 + float(theta[3]), 0.6 + 0.3 * float(theta[11])
    along, up = speed * math.cos(angle) + wind, speed * math.sin(angle)
    if along <= 0.1:
        return -10.0
    time = DISTANCE / along
    return -min(10.0, abs(up * time - 0.5 * GRAVITY * time**2 - HEIGHT))


task = task_from_function(throw, n_parameters=20, initial_std=1.0, optimum=0.0)


def main() -> None:
    algorithm = klimb.dr_creps(epsilon=1.0, kappa=2.0, n_effective=4, effectiveness="pearson")

    def report(progress: klimb.Progress) -> None:
        if progress.optimizer.iteration == 1 and progress.info.effectiveness is not None:
            most = np.argsort(progress.info.effectiveness)[::-1][:2]
            print(f"After {progress.episodes} throws, parameters {sorted(most.tolist())} seem to matter.")
        if progress.optimizer.iteration % 5 == 0:
            print(f"{progress.episodes:5d} throws: they miss by {-progress.returns.mean():.2f} m on average")

    start = np.zeros(task.n_parameters)
    result = klimb.maximize(
        task, algorithm, mean=start, std=task.initial_std, episodes=1500, batch=50, seed=0, callback=report
    )
    before = task.evaluate(np.zeros((200, 20)), seed=1)
    after = task.evaluate(np.tile(result.mean, (200, 1)), seed=1)
    print(f"\nThe first guess misses by {-before.mean():.2f} m, the learned throw by {-after.mean():.2f} m:")
    angle = math.degrees(0.6 + 0.3 * result.mean[11])
    print(f"speed {5.0 + result.mean[3]:.2f} m/s, angle {angle:.0f} degrees.")


if __name__ == "__main__":
    main()
