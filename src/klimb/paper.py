"""The paper's settings: what `klimb run` takes where the user says nothing else.

From the tables of the paper's experiments. Each entry holds the settings of a recipe and, as "batch", the
episodes per update. The diagonal ones are from the first LQR figure.
"""

from __future__ import annotations

from typing import Any

from klimb.algorithms import ALGORITHMS, BASELINES

EPISODES = {"lqr": 5000, "ship-steering": 3500, "air-hockey": 10_000, "ball-stopping": 7000}

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "lqr": {
        "rwr": {"beta": 0.2, "covariance": "diagonal", "batch": 25},
        "pro": {"beta": 0.2, "covariance": "diagonal", "batch": 25},
        "reps": {"epsilon": 0.4, "covariance": "diagonal", "batch": 25},
        "reps-pe": {"epsilon": 0.4, "n_effective": 30, "damping": 0.9, "covariance": "diagonal", "batch": 25},
        "creps": {"epsilon": 4.7, "kappa": 17.0, "batch": 150},
        "more": {"epsilon": 4.7, "kappa": 17.0, "batch": 250},
        "dr-creps": {"epsilon": 4.7, "kappa": 17.0, "n_effective": 50, "damping": 0.1, "batch": 50},
        "nes": {"learning_rate": 0.03, "batch": 100},
        "ppo": {"learning_rate": 3e-3, "batch": 100},
        "trpo": {"learning_rate": 3e-3, "max_kl": 1.0, "batch": 100},
        "reinforce": {"step_size": 1e-2, "batch": 100},
    },
    "ship-steering": {
        "dr-reps": {"epsilon": 0.5, "n_effective": 100, "damping": 0.1, "batch": 250},
        "creps": {"epsilon": 2.4, "kappa": 20.0, "batch": 15},
        "more": {"epsilon": 4.4, "kappa": 20.0, "batch": 15},
        "dr-creps": {"epsilon": 3.4, "kappa": 20.0, "n_effective": 200, "damping": 0.1, "batch": 15},
        "nes": {"learning_rate": 0.03, "batch": 100},
        "ppo": {"learning_rate": 3e-4, "batch": 100},
        "trpo": {"learning_rate": 3e-2, "max_kl": 1e-2, "batch": 100},
        "reinforce": {"step_size": 1e-3, "batch": 100},
    },
    "air-hockey": {
        "creps": {"epsilon": 2.0, "kappa": 12.0, "batch": 250},
        "more": {"epsilon": 2.4, "kappa": 12.0, "batch": 250},
        "dr-creps": {"epsilon": 2.0, "kappa": 12.0, "n_effective": 30, "damping": 0.5, "batch": 50},
        "nes": {"learning_rate": 0.3, "batch": 100},
        "ppo": {"learning_rate": 3e-3, "batch": 100},
        "trpo": {"learning_rate": 3e-3, "max_kl": 1e-1, "batch": 100},
        "reinforce": {"step_size": 1e-1, "batch": 100},
    },
    "ball-stopping": {
        "creps": {"epsilon": 4.5, "kappa": 20.0, "batch": 250},
        "more": {"epsilon": 4.5, "kappa": 20.0, "batch": 250},
        "dr-creps": {"epsilon": 4.5, "kappa": 20.0, "n_effective": 30, "damping": 0.5, "batch": 60},
        "nes": {"learning_rate": 0.3, "batch": 100},
        "ppo": {"learning_rate": 3e-3, "batch": 70},
        "trpo": {"learning_rate": 3e-2, "max_kl": 1.0, "batch": 70},
        "reinforce": {"step_size": 1e-3, "batch": 70},
    },
}


def usual_settings(task: str, algorithm: str, n_parameters: int) -> tuple[dict[str, Any], int | None]:
    """Settings of a known algorithm and its episodes per update; the recipe's own where the paper has none.

    A task made with other options may have fewer parameters than the paper counts effective: then the
    number of these is left to the recipe. The episodes are None where a baseline decides by that number.
    """
    settings = dict(SETTINGS.get(task, {}).get(algorithm, {}))
    batch = settings.pop("batch", (ALGORITHMS | BASELINES)[algorithm].batch)
    if settings.get("n_effective", 0) > n_parameters:
        del settings["n_effective"]
    return settings, batch
