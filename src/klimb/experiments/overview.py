"""The matrices of one update and one sampling step of DR-CREPS, taken from a search under way.

Symbols: Sigma the covariance of the belief, U its axes, so that U' Sigma U is diagonal; the block is what
that has at the selected coordinates; primes are after the update.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb._validation import FloatArray
from klimb.algorithms import dr_creps
from klimb.gaussian import Gaussian
from klimb.optimizer import Optimizer
from klimb.tasks.lqr import LQR

COLUMNS = ("matrix", "row", "column", "value")
PROBLEM: dict[str, Any] = {
    "n_states": 4,
    "n_effective_states": 2,
    "epsilon": 1.0,
    "kappa": 3.0,
    "n_effective": 6,
    "damping": 0.1,
    "batch": 50,
    "updates": 6,
}


def axes(gaussian: Gaussian) -> FloatArray:
    """U (n, n): the directions of the local coordinates, as columns."""
    directions: FloatArray = gaussian.from_local(np.eye(gaussian.n_parameters)) - gaussian.mean
    return directions.T


def matrices(settings: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Entries of all matrices of the last update."""
    task = LQR(n_states=settings["n_states"], n_effective=settings["n_effective_states"])
    search = dr_creps(**{name: settings[name] for name in ("epsilon", "kappa", "n_effective", "damping")})
    n = task.n_parameters
    optimizer = Optimizer(search, mean=np.zeros(n), std=task.initial_std, seed=seed)
    for _ in range(settings["updates"]):
        before = optimizer.belief
        theta = optimizer.ask(settings["batch"])
        info = optimizer.tell(theta, task.evaluate(theta))
    after, chosen = optimizer.belief, info.selected
    assert chosen is not None
    assert info.effectiveness is not None
    U, U_new = axes(before), axes(after)
    exploration = np.full(n, settings["damping"])
    exploration[chosen] = 1.0
    local_after = U.T @ after.covariance @ U
    shown = {
        "covariance": before.covariance,
        "local": np.diag(before.variances),
        "effectiveness": info.effectiveness[None],
        "selected": chosen[None].astype(np.float64),
        "block": np.diag(before.variances[chosen]),
        "updated block": local_after[np.ix_(chosen, chosen)],
        "substituted": local_after,
        "new covariance": after.covariance,
        "new local": np.diag(after.variances),
        "damped": np.diag(after.variances * exploration),
        "sampling covariance": (U_new * (after.variances * exploration)) @ U_new.T,
    }
    return [
        {"matrix": name, "row": row, "column": column, "value": float(value)}
        for name, matrix in shown.items()
        for (row, column), value in np.ndenumerate(matrix)
    ]
