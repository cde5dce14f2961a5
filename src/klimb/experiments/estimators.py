"""Three estimates of mutual information on a problem whose answer is known.

    Y = A X + E,    X ~ N(0, 1),    E ~ N(mean, spread^2),    A and the noise drawn anew for every seed

    I(X; Y) = 1/2 log((A^2 + spread^2) / spread^2)

(The paper adds A Sigma_xx A' to the covariance of Y given X, which is that of E alone.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from klimb.effectiveness import MEASURES

COLUMNS = ("estimator", "samples", "estimate", "analytic")
ESTIMATORS = {
    "regression": "mutual-information",
    "ksg": "mutual-information-ksg",
    "histogram": "mutual-information-histogram",
}
PROBLEM: dict[str, Any] = {
    "sizes": [*range(10, 200, 10), *range(200, 500, 25), *range(500, 1001, 50)],
    "gain": [0.5, 2.0],  # |A| is uniform between these
    "spread": [0.5, 1.5],  # of the noise, likewise
}


def compare(settings: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Estimate from the first N samples, for every N in ``settings["sizes"]``."""
    rng = np.random.default_rng(seed)
    largest = max(settings["sizes"])
    # the X are the same for every seed, as in the paper
    x = np.random.default_rng(0).standard_normal(largest)
    A = rng.uniform(*settings["gain"]) * rng.choice([-1.0, 1.0])
    spread, mean = rng.uniform(*settings["spread"]), rng.uniform(-1, 1)
    y = A * x + mean + spread * rng.standard_normal(largest)
    analytic = 0.5 * math.log((A**2 + spread**2) / spread**2)
    return [
        {
            "estimator": name,
            "samples": size,
            "estimate": float(MEASURES[measure](x[:size, None], y[:size], rng)[0]),
            "analytic": analytic,
        }
        for name, measure in ESTIMATORS.items()
        for size in settings["sizes"]
    ]
