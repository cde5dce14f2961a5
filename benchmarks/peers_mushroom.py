"""One measurement of MushroomRL, as JSON on the last line; it runs in MushroomRL's own environment.

``python benchmarks/peers_mushroom.py update CREPS 100 250`` or ``... episodes lqr``. ``peers.py`` calls it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from mushroom_rl.algorithms.policy_search import MORE, REPS, RWR, ConstrainedREPS
from mushroom_rl.approximators import Regressor
from mushroom_rl.approximators.parametric import LinearApproximator
from mushroom_rl.core import Core
from mushroom_rl.distributions import GaussianCholeskyDistribution, GaussianDiagonalDistribution
from mushroom_rl.environments import LQR, ShipSteering
from mushroom_rl.features import Features
from mushroom_rl.features.tiles import Tiles
from mushroom_rl.policy import DeterministicPolicy

EPSILON, KAPPA, BETA = 1.0, 5.0, 2.0
ALGORITHMS: dict[str, Any] = {
    "REPS": (REPS, {"eps": EPSILON}),
    "RWR": (RWR, {"beta": BETA}),
    "CREPS": (ConstrainedREPS, {"eps": EPSILON, "kappa": KAPPA}),
    "MORE": (MORE, {"eps": EPSILON}),
}
UPDATES, ENOUGH = 4, 60.0  # updates to take the least of, unless they have taken so many seconds


def update(name: str, n: int, batch: int) -> dict[str, Any]:
    """Least CPU time of an update from episodes of one step, whose return is minus the squared norm."""
    approximator = Regressor(LinearApproximator, input_shape=(n,), output_shape=(1,))
    policy = DeterministicPolicy(approximator)
    belief = GaussianCholeskyDistribution(np.zeros(n), np.eye(n))
    environment = LQR.generate(dimensions=2)
    kind, settings = ALGORITHMS[name]
    agent = kind(environment.info, belief, policy, **settings)
    state, action = np.zeros(2), np.zeros(2)
    times: list[float] = []
    error = None
    while len(times) < UPDATES and sum(times) < ENOUGH:
        episodes = []
        for _ in range(batch):
            agent.episode_start()
            reward = -float(np.square(policy.get_weights() - 1.0).sum())
            episodes.append((state, action, reward, state, True, True))
        begin = time.process_time()
        try:
            agent.fit(episodes)
        except (ArithmeticError, ValueError, np.linalg.LinAlgError) as trouble:
            error = f"{type(trouble).__name__}: {trouble}"
            break
        times.append(time.process_time() - begin)
    return {"seconds": min(times) if times else None, "updates": len(times), "error": error}


def episodes(task: str) -> dict[str, Any]:
    """Episodes per second of CPU time, with parameters from the task's initial distribution."""
    if task == "lqr":
        effective = [0, 1, 8]
        reach = np.full(10, 1e-20)
        reach[effective] = 1.0
        cost = np.full(10, 1e-20)
        cost[effective] = [0.9, 0.1, 0.1]
        effort = np.full(10, 0.9)
        effort[0] = 0.1
        environment = LQR(
            *map(np.diag, (np.ones(10), reach, cost, effort)),
            max_pos=1.0,
            max_action=1.0,
            episodic=False,
            gamma=0.9,
            horizon=50,
            initial_state=np.full(10, 0.9),
        )
        features, size, std, count = None, 10, 0.3, 100
    else:
        environment = ShipSteering(small=True)
        low, high = np.array([0.0, 0.0, -np.pi]), np.array([150.0, 150.0, np.pi])
        features = Features(tilings=Tiles.generate(3, [5, 5, 6], low, high))
        size, std, count = features.size, 0.07, 30
    shape = environment.info.action_space.shape
    policy = DeterministicPolicy(Regressor(LinearApproximator, input_shape=(size,), output_shape=shape))
    belief = GaussianDiagonalDistribution(np.zeros(policy.weights_size), np.full(policy.weights_size, std))
    core = Core(REPS(environment.info, belief, policy, eps=EPSILON, features=features), environment)
    rates, steps = [], 0
    for _ in range(3):
        begin = time.process_time()
        steps = len(core.evaluate(n_episodes=count, quiet=True))
        rates.append(count / (time.process_time() - begin))
    return {"rate": max(rates), "parameters": int(policy.weights_size), "steps": steps / count}


if __name__ == "__main__":
    np.random.seed(0)  # noqa: NPY002 - MushroomRL draws from numpy's global generator
    what, *rest = sys.argv[1:]
    measured = update(rest[0], int(rest[1]), int(rest[2])) if what == "update" else episodes(rest[0])
    print(json.dumps(measured))
