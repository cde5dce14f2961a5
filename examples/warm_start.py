"""Begin with episodes that exist already, some of which failed.

Told parameters need not have been asked for: hand-made trials and the log of another run are data as well. An
episode that failed, because the robot tripped its safety stop, say, has the return NaN and is left out.
"""

import numpy as np

import klimb

TARGET = np.linspace(-1.0, 1.0, 8)


def episodes(theta: np.ndarray) -> np.ndarray:
    """Returns of the rows of theta; a large first parameter trips the safety stop."""
    returns = -np.square(theta - TARGET).sum(axis=1)
    return np.where(np.abs(theta[:, 0]) > 2.0, np.nan, returns)


def climb(optimizer: klimb.Optimizer, batches: int) -> int:
    """Learn from batches of 16 episodes; how many of them failed."""
    failed = 0
    for _ in range(batches):
        theta = optimizer.ask(16)
        failed += optimizer.tell(theta, episodes(theta)).n_failed
    return failed


old = np.random.default_rng(1).normal(0.0, 1.2, (200, 8))  # last week's trials
old_returns = episodes(old)

algorithm = klimb.creps(epsilon=1.0, kappa=3.0)
warm = klimb.Optimizer(algorithm, mean=np.zeros(8), std=1.2, seed=0)
for _ in range(3):  # the same trials may be told more than once
    info = warm.tell(old, old_returns)
print(f"old trials: {info.n_used} used, {info.n_failed} had failed")

cold = klimb.Optimizer(algorithm, mean=np.zeros(8), std=1.2, seed=0)
for name, optimizer in {"cold": cold, "warm": warm}.items():
    before = episodes(optimizer.mean[None])[0]
    failed = climb(optimizer, batches=5)
    after = episodes(optimizer.mean[None])[0]
    print(f"{name} start: return of the mean {before:7.3f}, after 80 episodes {after:7.3f} ({failed} failed)")
