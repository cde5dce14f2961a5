"""PPO and TRPO from stable-baselines3 and sb3-contrib (extra "deep"), fed by whole episodes.

Networks, losses and optimisers are these libraries' own: their ``train()`` is called on a rollout buffer that
holds the `batch` episodes of an update, however long they are. What klimb adds is the running of episodes,
all at once (:mod:`klimb.baselines.stepping`), their counting, and its own random numbers: numpy's and torch's
global generators are left as they were.

Actor and critic are two networks with two hidden layers of 32, as in the paper. Observations are normalised
by their running mean and deviation, as the paper's are. One unit of the network's output is half the range of
the action, if it has one. An episode that the time limit ends is continued by the critic's value, as usual.

References: J. Schulman, F. Wolski, P. Dhariwal, A. Radford, O. Klimov, "Proximal Policy Optimization
Algorithms", 2017; J. Schulman, S. Levine, P. Moritz, M. Jordan, P. Abbeel, "Trust Region Policy
Optimization", ICML 2015.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb._validation import FloatArray, IntArray, positive, share, whole
from klimb.baselines.statistics import Statistics
from klimb.baselines.stepping import Act, Arena, Rollout

FARTHEST = 10.0  # deviations from the mean that an observation counts for at most


def ppo(
    learning_rate: float = 3e-3,
    n_epochs: int = 10,
    minibatch: int = 500,
    clip_range: float = 0.2,
    gae_lambda: float = 0.95,
    gamma: float | None = None,
    entropy: float = 0.0,
    initial_std: float = 1.0,
    normalise: bool = True,
    hidden: int = 32,
) -> Deep:
    """Proximal policy optimisation with neural networks (stable-baselines3).

    Parameters
    ----------
    learning_rate
        Of actor and critic.
    n_epochs, minibatch
        Passes over the steps of a batch of episodes, and steps per gradient.
    clip_range
        How far the ratio of probabilities may move from 1.
    gae_lambda
        Of the generalised advantage estimate.
    gamma
        Discount that is learned with; None takes the task's.
    entropy
        Weight of an entropy bonus.
    initial_std
        Of the actions, relative to half their range.
    normalise
        Whether the networks see normalised observations.
    hidden
        Width of the two hidden layers.
    """
    own = {
        "n_epochs": whole("n_epochs", n_epochs, 1),
        "clip_range": positive("clip_range", clip_range),
        "entropy": float(entropy),
    }
    shared = _shared(learning_rate, minibatch, gae_lambda, gamma, initial_std, normalise, hidden)
    return Deep("ppo", {**shared, **own})


def trpo(
    learning_rate: float = 3e-3,
    max_kl: float = 1.0,
    n_critic_updates: int = 10,
    minibatch: int = 500,
    gae_lambda: float = 0.95,
    gamma: float | None = None,
    initial_std: float = 1.0,
    normalise: bool = True,
    hidden: int = 32,
) -> Deep:
    """Trust region policy optimisation with neural networks (sb3-contrib).

    Parameters
    ----------
    learning_rate
        Of the critic.
    max_kl
        Bound on the divergence of the policy in an update.
    n_critic_updates, minibatch
        Passes of the critic over the steps of a batch of episodes, and steps per gradient.
    gae_lambda, gamma, initial_std, normalise, hidden
        As for :func:`ppo`.
    """
    own = {
        "max_kl": positive("max_kl", max_kl),
        "n_critic_updates": whole("n_critic_updates", n_critic_updates, 1),
    }
    shared = _shared(learning_rate, minibatch, gae_lambda, gamma, initial_std, normalise, hidden)
    return Deep("trpo", {**shared, **own})


def _shared(
    learning_rate: float,
    minibatch: int,
    gae_lambda: float,
    gamma: float | None,
    initial_std: float,
    normalise: bool,
    hidden: int,
) -> dict[str, Any]:
    return {
        "learning_rate": positive("learning_rate", learning_rate),
        "minibatch": whole("minibatch", minibatch, 2),
        "gae_lambda": share("gae_lambda", gae_lambda),
        "gamma": None if gamma is None else share("gamma", gamma),
        "initial_std": positive("initial_std", initial_std),
        "normalise": bool(normalise),
        "hidden": whole("hidden", hidden, 1),
    }


# Of settings that stable-baselines3 calls otherwise.
THEIR_NAMES = {"minibatch": "batch_size", "entropy": "ent_coef", "max_kl": "target_kl"}


@dataclass(frozen=True)
class Deep:
    """PPO or TRPO."""

    name: str
    settings: dict[str, Any]
    batch = 100
    fewest = 2

    def check(self, batch: int) -> None:
        """Any batch will do."""

    def agent(self, arena: Arena, batch: int, seed: int) -> ActorCritic:
        """Begin with new networks."""
        return ActorCritic(self, arena, seed)


class ActorCritic:
    """A model of stable-baselines3 that learns from whole episodes."""

    def __init__(self, algorithm: Deep, arena: Arena, seed: int) -> None:
        import torch
        from stable_baselines3.common.logger import Logger

        from klimb.baselines.vec_env import ArenaVecEnv

        settings = {THEIR_NAMES.get(name, name): value for name, value in algorithm.settings.items()}
        hidden, self._normalise = settings.pop("hidden"), settings.pop("normalise")
        initial_std, gamma = settings.pop("initial_std"), settings.pop("gamma")
        self._arena, self._rng = arena, np.random.default_rng(seed)
        self._statistics = Statistics(arena.n_observations)
        self._torch = torch
        with _one_thread(torch), _private_randomness(torch):
            self.model: Any = _class_of(algorithm.name)(
                "MlpPolicy",
                ArenaVecEnv(arena, seed),
                **settings,
                # the buffer that the model makes itself is not used
                n_steps=settings["batch_size"],
                gamma=arena.discount if gamma is None else gamma,
                policy_kwargs={
                    "net_arch": {"pi": [hidden, hidden], "vf": [hidden, hidden]},
                    "log_std_init": math.log(initial_std),
                    "optimizer_kwargs": {"eps": 1e-5, "fused": True},  # Adam in one call, half the time
                },
                seed=seed % 2**32,
                device="cpu",
            )
        self.model.set_logger(Logger(None, []))
        self._taken: list[tuple[FloatArray, ...]] = []

    @property
    def parameters(self) -> FloatArray:
        """All weights of both networks, (p,)."""
        return np.concatenate([array.ravel() for array in self.arrays().values()])

    def explore(self) -> Act:
        """Act at random and remember what the networks said."""
        taken: list[tuple[FloatArray, ...]] = []
        self._taken = taken

        def act(observations: FloatArray, rows: IntArray) -> FloatArray:
            seen = self._seen(observations)
            mean, std, values = self._look(seen)
            z = self._rng.standard_normal(mean.shape)
            actions = mean + std * z
            log_probabilities = -(0.5 * np.square(z) + np.log(std) + 0.5 * math.log(2 * math.pi)).sum(axis=1)
            taken.append((seen, actions, values, log_probabilities))
            return self._scaled(actions)

        return act

    def learn(self, rollout: Rollout) -> None:
        """Hand the episodes to the model and let it train."""
        from stable_baselines3.common.buffers import RolloutBuffer

        seen, actions, values, log_probabilities = (
            np.concatenate(parts)[rollout.order] for parts in zip(*self._taken, strict=True)
        )
        ends = np.cumsum(rollout.lengths) - 1
        rewards = rollout.rewards.copy()
        cut = ~rollout.terminated & ~rollout.failed
        if cut.any():
            beyond = self._look(self._seen(rollout.last[cut]))[2]
            rewards[ends[cut]] += self.model.gamma * beyond
        starts = np.zeros(len(rewards))
        starts[ends - rollout.lengths + 1] = 1.0
        good = ~rollout.failed[rollout.episode]
        model, steps = self.model, int(good.sum())
        buffer: Any = RolloutBuffer(
            steps,
            model.observation_space,
            model.action_space,
            device="cpu",
            gamma=model.gamma,
            gae_lambda=model.gae_lambda,
        )
        buffer.observations[:, 0] = seen[good]
        buffer.actions[:, 0] = actions[good]
        buffer.rewards[:, 0] = rewards[good]
        buffer.episode_starts[:, 0] = starts[good]
        buffer.values[:, 0] = values[good]
        buffer.log_probs[:, 0] = log_probabilities[good]
        buffer.pos, buffer.full = steps, True
        buffer.compute_returns_and_advantage(self._torch.zeros(1), np.ones(1))
        model.rollout_buffer = buffer
        with _one_thread(self._torch), _private_randomness(self._torch):
            seed = int(self._rng.integers(2**32))
            np.random.seed(seed)  # noqa: NPY002  (what the buffer shuffles with)
            self._torch.manual_seed(seed)  # what TRPO's conjugate gradients start from
            model.train()
        if self._normalise:
            self._statistics.add(rollout.observations[good])

    def policy(self, deterministic: bool, rng: np.random.Generator) -> Act:
        """Act by what was learned."""

        def act(observations: FloatArray, rows: IntArray) -> FloatArray:
            mean, std, _ = self._look(self._seen(observations))
            return self._scaled(mean if deterministic else mean + std * rng.standard_normal(mean.shape))

        return act

    def arrays(self) -> dict[str, FloatArray]:
        """Weights by their names in the model's policy, and the statistics of the observations."""
        state = self.model.policy.state_dict()
        weights = {name: tensor.numpy().astype(np.float64) for name, tensor in state.items()}
        return weights | {
            "observation_mean": self._statistics.mean,
            "observation_deviation": self._statistics.deviation,
        }

    def _seen(self, observations: FloatArray) -> FloatArray:
        if not self._normalise:
            return observations
        x = (observations - self._statistics.mean) / self._statistics.deviation
        return np.minimum(np.maximum(x, -FARTHEST), FARTHEST)

    def _look(self, seen: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean (k, a) and standard deviation (a,) of the actions, and the critic's values (k,)."""
        torch, policy = self._torch, self.model.policy
        with _one_thread(torch), torch.no_grad():
            tensor = torch.as_tensor(seen, dtype=torch.float32)
            normal = policy.get_distribution(tensor).distribution
            values = policy.predict_values(tensor)
        return (
            normal.mean.numpy().astype(np.float64),
            normal.stddev[0].numpy().astype(np.float64),
            values.numpy().astype(np.float64).ravel(),
        )

    def _scaled(self, actions: FloatArray) -> FloatArray:
        return scaled(self._arena, actions)


def scaled(arena: Arena, actions: FloatArray) -> FloatArray:
    """Actions (k, a) of a network in the units of the arena: [-1, 1] is the range of one that has one."""
    bounded = np.isfinite(arena.low) & np.isfinite(arena.high)
    half = np.where(bounded, (arena.high - arena.low) / 2, 1.0)
    middle = np.where(bounded, (arena.high + arena.low) / 2, 0.0)
    return middle + half * actions


def _class_of(name: str) -> Any:
    if name == "ppo":
        from stable_baselines3 import PPO

        return PPO
    from sb3_contrib import TRPO

    return TRPO


@contextmanager
def _one_thread(torch: Any) -> Iterator[None]:
    """The networks are small: several threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _private_randomness(torch: Any) -> Iterator[None]:
    """Leave the global generators as they were."""
    python, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)  # noqa: NPY002
        torch.set_rng_state(torch_state)
