"""Runs of what klimb did not invent: optimisers by ask and tell, and learners that act step by step."""

from __future__ import annotations

from typing import Any

import numpy as np

from klimb.algorithms import make_algorithm
from klimb.baselines import Baseline, Stepwise, train
from klimb.baselines.stepping import make_arena
from klimb.baselines.stepping import run as act_out
from klimb.baselines.training import Agent
from klimb.experiments.judge import EPISODES, JUDGING, Judge, average, generator, stream
from klimb.experiments.plan import Settings
from klimb.optimizer import Progress
from klimb.tasks import Task, episode_seeds, make_task

Record = dict[str, Any]


def baseline_run(settings: Settings, seed: int) -> list[Record]:
    """Learn a task with a baseline; a record per epoch, as of a search."""
    task = make_task(settings["task"], **settings["options"])
    algorithm = make_algorithm(settings["algorithm"], **settings["settings"])
    learn = _converse if isinstance(algorithm, Baseline) else _act
    return learn(task, algorithm, settings, seed)


def _converse(task: Task, algorithm: Baseline, settings: Settings, seed: int) -> list[Record]:
    """Ask and tell; an epoch is so many episodes, whatever the optimiser makes of them."""
    batch = settings["batch"]
    mean = np.zeros(task.n_parameters)
    learner = algorithm.start(mean=mean, std=settings["std"], batch=batch, seed=seed)
    judge = Judge(task, settings["draws"], seed)
    records: list[Record] = [{"epoch": 0, "episodes": 0, **judge(learner, 0)}]
    for epoch in range(1, settings["epochs"] + 1):
        seeds = episode_seeds(stream(seed, epoch, EPISODES), batch)
        returns = np.empty(0)
        while returns.size < batch and not learner.ended:
            asked = learner.ask(batch - returns.size)
            told = task.evaluate(asked, seeds[returns.size :][: len(asked)])
            learner.tell(asked, told)
            returns = np.append(returns, told)
        if returns.size:
            spent = records[-1]["episodes"] + returns.size
            records.append({"epoch": epoch, "episodes": spent, **_batch(returns), **judge(learner, epoch)})
    return records


def _act(task: Task, algorithm: Stepwise, settings: Settings, seed: int) -> list[Record]:
    """Act in the task's environment; the draws are episodes of the policy with its randomness."""
    batch, draws = settings["batch"], settings["draws"]
    arena = make_arena(task, algorithm.name, max(batch, draws))

    def judge(agent: Agent, epoch: int) -> Record:
        seeds = episode_seeds(stream(seed, epoch, JUDGING), draws + 1)
        drawn = act_out(arena, agent.policy(False, generator(seed, epoch)), seeds[:-1])
        usual = act_out(arena, agent.policy(True, generator(seed, epoch)), seeds[-1:])
        return {
            "belief_return": average(drawn.returns),
            "mean_policy_return": average(usual.returns),
            "success_rate": float(drawn.success.mean()) if arena.tells_success else None,
        }

    records: list[Record] = [{"epoch": 0, "episodes": 0, **judge(algorithm.agent(arena, batch, seed), 0)}]

    def follow(progress: Progress) -> None:
        epoch = len(records)
        agent = progress.optimizer.agent  # type: ignore[attr-defined]
        spent = {"epoch": epoch, "episodes": progress.episodes}
        records.append({**spent, **_batch(progress.returns), **judge(agent, epoch)})

    train(task, algorithm, episodes=batch * settings["epochs"], batch=batch, seed=seed, callback=follow)
    return records


def _batch(returns: Any) -> Record:
    """What the episodes of an epoch gave."""
    failed = int((~np.isfinite(returns)).sum())
    return {"batch_return": average(returns), "n_failed": failed, "failed_update": 0}
