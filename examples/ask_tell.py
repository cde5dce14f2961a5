"""Ask and tell: learn ten parameters of which two matter, with a plain function for the robot."""

import numpy as np

import klimb


def episode(parameters: np.ndarray) -> float:
    """Return of one episode: parameters 2 and 7 should be 1.5 and -0.5, the others change nothing."""
    return -float((parameters[2] - 1.5) ** 2 + (parameters[7] + 0.5) ** 2)


algorithm = klimb.dr_creps(epsilon=1.0, kappa=2.0, n_effective=4)
optimizer = klimb.Optimizer(algorithm, mean=np.zeros(10), std=1.0, seed=0)

for iteration in range(30):
    theta = optimizer.ask(20)  # 20 parameter vectors to try
    returns = [episode(row) for row in theta]
    info = optimizer.tell(theta, returns)
    if iteration % 5 == 4:
        print(
            f"{20 * (iteration + 1):4d} episodes: mean return {np.mean(returns):8.5f}, "
            f"divergence {info.kl:.3f}, entropy drop {info.entropy_drop:.3f}"
        )

print("parameters 2 and 7:", optimizer.mean[[2, 7]].round(3))
