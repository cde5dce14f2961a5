"""Learning on the paper's simulated tasks: DR-CREPS with the paper's settings, from fresh seeds.

The table says how often random parameters succeed before and after learning, whether the mean of the final
belief does, and which episode was the first to succeed. Results go to ``benchmarks/results/learning.json``.
Nothing here depends on the machine's load. ``python benchmarks/learning.py --seeds 2000 2001`` runs fewer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import klimb
from klimb._validation import FloatArray
from klimb.paper import EPISODES, usual_settings

TASKS: dict[str, dict[str, Any]] = {
    "ship-steering": {},
    "air-hockey": {"threads": 2},
    "ball-stopping": {"threads": 2},
}
ALGORITHM = "dr-creps"
SEEDS = (2000, 2001, 2002, 2003, 2004)
INITIAL_DRAWS, FINAL_DRAWS = 1000, 200
RESULTS = Path(__file__).parent / "results" / "learning.json"


class Counted:
    """A task that remembers how many episodes it has seen, and which was the first to succeed."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.episodes = 0
        self.first_success: int | None = None

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Returns (N,) of `theta` (N, n)."""
        returns: FloatArray
        returns, success = self.task.evaluate(theta, seed, return_success=True)
        if self.first_success is None and success.any():
            self.first_success = self.episodes + int(success.argmax()) + 1
        self.episodes += len(returns)
        return returns


def learn(task: Any, algorithm: klimb.Search, batch: int, episodes: int, seed: int) -> dict[str, Any]:
    """One run, and what became of it."""
    counted = Counted(task)
    mean, std = np.zeros(task.n_parameters), task.initial_std
    result = klimb.maximize(counted, algorithm, mean=mean, std=std, episodes=episodes, batch=batch, seed=seed)
    draws = result.optimizer.sample(np.random.default_rng([seed, 1]), FINAL_DRAWS)
    returns, success = task.evaluate(draws, seed, return_success=True)
    mean_return, mean_success = task.evaluate(result.optimizer.mean[None], seed, return_success=True)
    return {
        "seed": seed,
        "first_success": counted.first_success,
        "final_success": float(success.mean()),
        "final_return": float(returns.mean()),
        "mean_policy_succeeds": bool(mean_success[0]),
        "mean_policy_return": float(mean_return[0]),
        "failed_episodes": result.n_failed + int(np.isnan(returns).sum()),
    }


def initial_success(task: Any) -> float:
    """Share of the initial distribution's draws that succeed."""
    theta = task.initial_std * np.random.default_rng(0).standard_normal((INITIAL_DRAWS, task.n_parameters))
    _, success = task.evaluate(theta, return_success=True)
    return float(success.mean())


def shown(name: str, entry: dict[str, Any]) -> tuple[str, ...]:
    """A line of the table."""
    runs = entry["runs"]
    final = np.array([run["final_success"] for run in runs])
    returns = np.array([run["final_return"] for run in runs])
    first = ["never" if run["first_success"] is None else str(run["first_success"]) for run in runs]
    return (
        f"{name}\n{entry['episodes']} episodes",
        f"{100 * entry['initial_success']:.1f} %",
        f"{100 * final.mean():.0f} %\n" + " ".join(f"{100 * share:.0f}" for share in final),
        f"{sum(run['mean_policy_succeeds'] for run in runs)} of {len(runs)}",
        "\n".join(first),
        f"{returns.mean():.1f}\n{returns.min():.1f} to {returns.max():.1f}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    console = Console(width=120)
    results: dict[str, dict[str, Any]] = {}
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("learning", total=len(TASKS) * len(arguments.seeds))
        for name, options in TASKS.items():
            task: Any = klimb.make_task(name, **options)
            settings, batch = usual_settings(name, ALGORITHM, task.n_parameters)
            algorithm = klimb.make_algorithm(ALGORITHM, **settings)
            assert batch is not None
            entry = {"settings": settings, "batch": batch, "episodes": EPISODES[name]}
            results[name] = {**entry, "initial_success": initial_success(task), "runs": []}
            for seed in arguments.seeds:
                progress.update(bar, description=f"{name}, seed {seed}")
                results[name]["runs"].append(learn(task, algorithm, batch, EPISODES[name], seed))
                progress.advance(bar)
    columns = ("", "initial success", "final success", "mean policy", "first success", "final return")
    made = Table(*columns, title=f"{ALGORITHM}, the paper's settings", title_justify="left", show_lines=True)
    for name, entry in results.items():
        made.add_row(*shown(name, entry))
    console.print(made)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    versions = {"klimb": klimb.__version__, "numpy": np.__version__}
    written = {"algorithm": ALGORITHM, "versions": versions, "tasks": results}
    arguments.output.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
