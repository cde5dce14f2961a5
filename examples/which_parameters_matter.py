"""Which parameters matter? Precision and recall of the choice on the LQR, where the answer is known.

The best controller of the LQR needs 3 of its 100 gains. ``info.effectiveness`` and ``info.selected`` speak of
local coordinates. With a diagonal covariance these are the parameters themselves. With a full one they are
turned: ``by_parameter`` shows how to get back.
"""

import numpy as np

import klimb
from klimb.tasks.lqr import LQR

task = LQR()
matter = task.effective_parameters


def by_parameter(effectiveness: np.ndarray, belief: klimb.Gaussian) -> np.ndarray:
    """Spread the effectiveness of local coordinates, (n,), over the parameters that they mix."""
    spread = effectiveness.copy()
    spread[belief.mixed] = np.square(belief.rotation) @ effectiveness[belief.mixed]
    return spread


def report(name: str, covariance: str, batch: int, updates: int) -> None:
    algorithm = klimb.make_algorithm(
        "dr-creps", epsilon=1.0, kappa=2.0, n_effective=30, damping=0.5, covariance=covariance
    )
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(task.n_parameters), std=task.initial_std, seed=1)
    total = np.zeros(task.n_parameters)
    for iteration in range(updates):
        theta, belief = optimizer.ask(batch), optimizer.belief
        info = optimizer.tell(theta, task.evaluate(theta, seed=iteration))
        assert info.effectiveness is not None
        total += by_parameter(info.effectiveness, belief)
    print(f"{name}: return of the mean {task.evaluate(optimizer.mean[None])[0]:.2f}")
    for count in (3, 10, 30):
        chosen = np.argsort(-total)[:count]
        hits = np.isin(matter, chosen).sum()
        print(f"  of the top {count:2d}: precision {hits / count:4.2f}, recall {hits / matter.size:4.2f}")


print(f"the gains that matter: {matter}")
report("one update, 50 episodes", "diagonal", 50, 1)
report("one update, 2000 episodes", "diagonal", 2000, 1)
report("50 updates of 100 episodes, diagonal covariance", "diagonal", 100, 50)
report("50 updates of 100 episodes, full covariance", "full", 100, 50)
