"""Bring a measure of your own: any function (local_samples, returns, rng) -> one number per coordinate.

Here the return depends on the size of a parameter, not on its sign, so that a correlation sees
little. A correlation with the square sees it.
"""

import numpy as np

import klimb
from klimb.effectiveness import Effectiveness

HIDDEN = [3, 11]  # the parameters that matter


def bowl(theta: np.ndarray) -> np.ndarray:
    returns: np.ndarray = -np.square(theta[:, HIDDEN]).sum(axis=1)
    return returns


def energy(local_samples: np.ndarray, returns: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """|correlation| of each coordinate's square with the return."""
    squares = np.square(local_samples)
    squares -= squares.mean(axis=0)
    centred = returns - returns.mean()
    sizes = np.sqrt(np.square(squares).sum(axis=0) * np.square(centred).sum())
    strength: np.ndarray = np.abs(centred @ squares) / sizes
    return strength


def share_found(effectiveness: str | Effectiveness) -> float:
    """How many of the parameters that matter one update finds, on average over 50 searches."""
    algorithm = klimb.dr_creps(n_effective=2, covariance="diagonal", effectiveness=effectiveness)
    found = 0
    for seed in range(50):
        optimizer = klimb.Optimizer(algorithm, mean=np.zeros(20), std=1.0, seed=seed)
        theta = optimizer.ask(100)
        selected = optimizer.tell(theta, bowl(theta)).selected
        assert selected is not None  # as the algorithm measures effectiveness
        found += int(np.isin(HIDDEN, selected).sum())
    return found / (50 * len(HIDDEN))


print(f"pearson finds {share_found('pearson'):.0%} of the parameters that matter")
print(f"a measure of our own finds {share_found(energy):.0%}")
