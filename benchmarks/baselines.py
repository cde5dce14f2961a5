"""The baselines measured: PPO's speed, the sphere, the LQR, Pendulum.

    python benchmarks/baselines.py                 speed and sphere, what `make bench` runs (a minute)
    python benchmarks/baselines.py --table         every algorithm on the LQR, 5 seeds (15 minutes of CPU)
    python benchmarks/baselines.py --pendulum      PPO and TRPO on Pendulum-v1, 3 seeds (10 minutes of CPU)

Timings are CPU time with one thread, and ratios within one run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

import klimb
from klimb.algorithms import ALGORITHMS, BASELINES
from klimb.baselines import train
from klimb.paper import usual_settings
from klimb.tasks import episode_seeds

SEEDS = range(5)
CHECKPOINTS = (1000, 2000, 5000)
EVALUATIONS = 200
SPEED_EPISODES = 1000
PRECISION = 1e-6

console, log = Console(width=120), Console(stderr=True)

# Settings and episodes per update on the sphere: those of `klimb run`, but for CEM, whose usual 25 of 50
# shrink before they arrive.
SPHERE: dict[str, tuple[dict[str, Any], int]] = {
    "nes": ({}, 100),
    "es": ({}, 100),
    "cem": ({"n_elite": 50}, 200),
    "nelder-mead": ({}, 50),
    "l-bfgs": ({}, 50),
    "cma-es": ({}, 10),
    "sep-cma": ({}, 10),
    "vkd-cma": ({}, 10),
    "cr-fm-nes": ({}, 10),
    "ars": ({}, 32),
}


def speed() -> None:
    """Steps per second of PPO on the LQR: klimb's batched environments, and one of stable-baselines3."""
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    task = klimb.make_task("lqr")
    algorithm = klimb.make_algorithm("ppo")
    steps = 50 * SPEED_EPISODES
    table = Table("PPO on the LQR, 50,000 steps", "steps/s", "ratio", title="CPU time, one thread")

    def ours(episodes: int = SPEED_EPISODES) -> None:
        train(task, algorithm, episodes=episodes, batch=100)

    def plain(steps: int = 50 * SPEED_EPISODES, **settings: Any) -> None:
        env = gymnasium.make("klimb/LQR-v0")
        network = {"net_arch": {"pi": [32, 32], "vf": [32, 32]}}
        PPO("MlpPolicy", env, gamma=0.9, policy_kwargs=network, device="cpu", **settings).learn(steps)

    same = {"n_steps": 5000, "batch_size": algorithm.settings["batch_size"], "learning_rate": 3e-3}
    works: dict[str, Callable[[], object]] = {
        "klimb, 100 environments at once": ours,
        "stable-baselines3, one environment, the same settings": lambda: plain(**same),
        "stable-baselines3, one environment, its default settings": plain,
    }
    ours(100)  # both warm up
    plain(2048)
    # in turn, and the best of as many runs for each, so that a busy machine favours nobody
    rounds = [{name: cpu_time(work) for name, work in works.items()} for _ in range(3)]
    least = {name: min(times[name] for times in rounds) for name in works}
    fastest = least["klimb, 100 environments at once"]
    for name, seconds in least.items():
        table.add_row(name, f"{steps / seconds:.0f}", f"{seconds / fastest:.1f}")
    console.print(table)


def cpu_time(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def sphere() -> None:
    """Episodes until the mean is within 1e-6 of the optimum of the 10-dimensional sphere."""
    table = Table("algorithm", "settings", "batch", *(f"seed {seed}" for seed in SEEDS), title="to 1e-6")
    for name, (settings, batch) in SPHERE.items():
        needed = [episodes_needed(name, settings, batch, seed) for seed in SEEDS]
        table.add_row(name, str(settings or ""), str(batch), *(str(n or "never") for n in needed))
    console.print(table)


def episodes_needed(
    name: str, settings: dict[str, Any], batch: int, seed: int, episodes: int = 20_000
) -> int | None:
    """Episodes after which the mean is near enough, None if it never is."""
    task: Any = klimb.make_task("sphere")
    reached: list[int] = []

    def near(progress: klimb.Progress) -> bool:
        if task.evaluate(progress.optimizer.mean[None])[0] >= -PRECISION:
            reached.append(progress.episodes)
        return bool(reached)

    algorithm = klimb.make_algorithm(name, **settings)
    start = np.zeros(task.n_parameters)
    klimb.maximize(
        task, algorithm, mean=start, std=1.0, episodes=episodes, batch=batch, seed=seed, callback=near
    )
    return reached[0] if reached else None


# ---------------------------------------------------------------------------------------- the LQR's table


def lqr_table() -> None:
    """Print every algorithm's returns on the LQR after 1000, 2000 and 5000 episodes, as Markdown."""
    print("| algorithm | batch | " + " | ".join(f"{episodes} episodes" for episodes in CHECKPOINTS) + " |")
    print("|---|---|" + "---|" * len(CHECKPOINTS))
    runs: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in ALGORITHMS | BASELINES]
    runs.append(("ars, v2-t", "ars", {"version": "v2-t"}))
    for title, name, more in runs:
        begin = time.process_time()
        results = [lqr_run(name, more, seed) for seed in SEEDS]
        batch = results[0][0]
        cells = []
        for episodes in CHECKPOINTS:
            both = np.array([values[episodes] for _, values in results])
            cells.append(f"{both[:, 0].mean():.2f} ± {both[:, 0].std(ddof=1):.2f} ({both[:, 1].mean():.2f})")
        print(f"| {title} | {batch} | " + " | ".join(cells) + " |", flush=True)
        log.print(f"{title}: {time.process_time() - begin:.0f} s", style="dim")


def lqr_run(name: str, more: dict[str, Any], seed: int) -> tuple[int, dict[int, tuple[float, float]]]:
    """Batch, and by checkpoint the mean return under the search distribution or policy, and of its mean."""
    task: Any = klimb.make_task("lqr")
    settings, batch = usual_settings("lqr", name, task.n_parameters)
    algorithm = klimb.make_algorithm(name, **settings, **more)
    batch = batch or algorithm.usual_batch(task.n_parameters)
    seeds = episode_seeds(2**32 - 1, EVALUATIONS)
    found: dict[int, tuple[float, float]] = {}

    def judge(optimizer: Any) -> tuple[float, float]:
        if hasattr(algorithm, "agent"):
            from klimb.baselines.stepping import make_arena, run

            arena = make_arena(task, name, EVALUATIONS)
            rng = np.random.default_rng(0)
            random = run(arena, optimizer.agent.policy(False, rng), seeds).returns
            fixed = run(arena, optimizer.agent.policy(True, rng), seeds).returns
        else:
            random = task.evaluate(optimizer.sample(np.random.default_rng(0), EVALUATIONS), seeds)
            fixed = task.evaluate(optimizer.mean[None], seeds[:1])
        return float(random.mean()), float(fixed.mean())

    def look(progress: klimb.Progress) -> None:
        for episodes in CHECKPOINTS:  # the last update within each budget
            if progress.episodes <= episodes < progress.episodes + batch:
                found[episodes] = judge(progress.optimizer)

    budget: dict[str, Any] = {"episodes": max(CHECKPOINTS), "batch": batch, "seed": seed, "callback": look}
    if hasattr(algorithm, "agent"):
        result: Any = train(task, algorithm, **budget)
    else:
        start = np.zeros(task.n_parameters)
        result = klimb.maximize(task, algorithm, mean=start, std=task.initial_std, **budget)
    for episodes in CHECKPOINTS:  # of a search that ended before
        found.setdefault(episodes, judge(result.optimizer))
    return batch, found


# ----------------------------------------------------------------------------------------------- Pendulum

PENDULUM: dict[str, dict[str, Any]] = {
    "ppo": {"learning_rate": 1e-3, "gamma": 0.9, "minibatch": 64},
    "trpo": {"learning_rate": 1e-3, "gamma": 0.9, "max_kl": 0.01, "minibatch": 64},
}


def pendulum(episodes: int = 1500, batch: int = 10) -> None:
    """Undiscounted returns of PPO and TRPO on Pendulum-v1, 100 episodes of the deterministic policy each."""
    task = klimb.make_task("gymnasium:Pendulum-v1")
    for name, settings in PENDULUM.items():
        for seed in range(3):
            begin = time.process_time()
            algorithm = klimb.make_algorithm(name, **settings)
            result = train(task, algorithm, episodes=episodes, batch=batch, seed=seed)
            returns, _ = result.evaluate(range(10_000, 10_100), deterministic=True)
            print(
                f"{name} seed {seed}: {returns.mean():.0f} ± {returns.std():.0f} after "
                f"{result.episodes} episodes, {time.process_time() - begin:.0f} s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--pendulum", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        lqr_table()
    if chosen.pendulum:
        pendulum()
    if not (chosen.table or chosen.pendulum):
        speed()
        sphere()


if __name__ == "__main__":
    main()
