"""Save between any two calls, resume in another process, and get the very same run."""

import tempfile
from pathlib import Path

import numpy as np

import klimb


def episodes(theta: np.ndarray) -> np.ndarray:
    returns: np.ndarray = -np.square(theta - 1.0).sum(axis=1)
    return returns


def learn(optimizer: klimb.Optimizer, updates: int) -> None:
    for _ in range(updates):
        theta = optimizer.ask(20)
        optimizer.tell(theta, episodes(theta))


straight = klimb.Optimizer(klimb.dr_creps(n_effective=5), mean=np.zeros(20), std=1.0, seed=3)
learn(straight, 20)

stopped = klimb.Optimizer(klimb.dr_creps(n_effective=5), mean=np.zeros(20), std=1.0, seed=3)
learn(stopped, 8)
first_half = stopped.ask(10)  # half of a batch has been tried when the power goes out

with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "optimizer.npz"
    stopped.save(path)
    print(f"saved after {stopped.iteration} updates: {path.stat().st_size} bytes")
    resumed = klimb.Optimizer.load(path)

second_half = resumed.ask(10)  # goes on where the first half ended
theta = np.vstack([first_half, second_half])
resumed.tell(theta, episodes(theta))
learn(resumed, 11)

print("the same mean to the last bit:", np.array_equal(straight.mean, resumed.mean))
print("the same covariance to the last bit:", np.array_equal(straight.covariance, resumed.covariance))
