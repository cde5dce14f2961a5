"""The boundary to what is no search of klimb's own: policy gradients and classic optimisers.

This module is the only place that knows how such a run is done. A figure names them like any algorithm;
those that are not available are left out, and said to be.
"""

from __future__ import annotations

from typing import Any

BASELINES = ("ppo", "trpo", "reinforce", "nelder-mead", "l-bfgs")


def available(algorithm: str) -> bool:
    """Whether this baseline can be run here."""
    return False


def run_baseline(settings: dict[str, Any], seed: int) -> list[dict[str, Any]]:
    """Run a baseline with the resolved settings of a variant, see Figure.resolve in plan.py.

    Returns
    -------
    list of dict
        One record per epoch, the first for epoch 0, with keys from :data:`klimb.experiments.run.COLUMNS`;
        what does not apply is left out.
    """
    raise ValueError(f"{settings['algorithm']} is not available here; leave it out.")
