"""REINFORCE with a linear Gaussian policy, a baseline of least variance and steps of fixed length.

    action ~ N(W phi, sigma^2),   g_i = sum_t grad log pi(a_t | s_t) of episode i,   return J_i
    gradient = mean_i g_i (J_i - c),   c = sum_i g_i^2 J_i / sum_i g_i^2        for each parameter
    step     = sqrt(step_size) gradient / |gradient|                            so that |step|^2 = step_size

phi are the features of the task's own policy where that is linear or tile-coded, else the observations and a
constant. W begins at zero; log sigma, one per action, is learned with it.

References: R. Williams, "Simple Statistical Gradient-Following Algorithms for Connectionist Reinforcement
Learning", 1992; J. Peters, S. Schaal, "Reinforcement Learning of Motor Skills with Policy Gradients", 2008
(the baseline). The step is what the paper calls the optimizer's step size epsilon.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from klimb._validation import FloatArray, IntArray, positive
from klimb.baselines.stepping import Act, Arena, Rollout
from klimb.policies.linear import Linear
from klimb.policies.tiles import Tiles


def reinforce(step_size: float = 0.01, initial_std: float = 0.5) -> Reinforce:
    """REINFORCE: the likelihood-ratio gradient of a linear Gaussian policy, steps of fixed length.

    Parameters
    ----------
    step_size
        Squared length of a step of the parameters.
    initial_std
        Standard deviation of the actions at the start, relative to half their range.
    """
    settings = {
        "step_size": positive("step_size", step_size),
        "initial_std": positive("initial_std", initial_std),
    }
    return Reinforce(settings)


@dataclass(frozen=True)
class Reinforce:
    """The settings."""

    settings: dict[str, Any]
    name = "reinforce"
    batch = 100
    fewest = 2

    def check(self, batch: int) -> None:
        """Any batch will do."""

    def agent(self, arena: Arena, batch: int, seed: int) -> LinearGaussian:
        """Begin with W = 0."""
        return LinearGaussian(self.settings, arena, seed)


Features = Callable[[FloatArray], FloatArray]


class LinearGaussian:
    """A linear Gaussian policy that learns."""

    def __init__(self, settings: dict[str, Any], arena: Arena, seed: int) -> None:
        self._step_size: float = settings["step_size"]
        self._arena, self._rng = arena, np.random.default_rng(seed)
        half = (arena.high - arena.low) / 2
        half = np.where(np.isfinite(half), half, 1.0)
        policy = arena.policy
        if not isinstance(policy, (Linear, Tiles)):
            policy = Linear(arena.n_observations, arena.n_actions, bias=True)
        self._features = features_of(policy)
        self._bias = isinstance(policy, Linear) and policy.bias
        n_features = self._features(np.zeros((1, arena.n_observations))).shape[1]
        self._W = np.zeros((arena.n_actions, n_features))
        self._log_std = np.log(settings["initial_std"] * half)

    @property
    def parameters(self) -> FloatArray:
        """W as the task's own policy has it, if that is linear: row by row, a constant's column last."""
        if self._bias:
            return np.concatenate([self._W[:, :-1].ravel(), self._W[:, -1]])
        return self._W.ravel().copy()

    def explore(self) -> Act:
        """Act at random and remember how."""
        self._deviations: list[FloatArray] = []
        std = np.exp(self._log_std)

        def act(observations: FloatArray, rows: IntArray) -> FloatArray:
            deviation = self._rng.standard_normal((len(rows), self._arena.n_actions))
            self._deviations.append(deviation)
            actions: FloatArray = self._features(observations) @ self._W.T + std * deviation
            return actions

        return act

    def learn(self, rollout: Rollout) -> None:
        """Take a step along the gradient."""
        g, J = self._score(rollout), rollout.returns[~rollout.failed]
        squares = np.square(g)
        total = squares.sum(axis=0)
        c = np.divide(J @ squares, total, out=np.zeros_like(total), where=total > 0)
        gradient = (g * (J[:, None] - c)).mean(axis=0)
        length = float(np.linalg.norm(gradient))
        if length == 0 or not np.isfinite(length):
            return
        step = np.sqrt(self._step_size) * gradient / length
        self._W = self._W + step[: self._W.size].reshape(self._W.shape)
        self._log_std = self._log_std + step[self._W.size :]

    def policy(self, deterministic: bool, rng: np.random.Generator) -> Act:
        """Act by what was learned."""
        W, std = self._W, 0.0 if deterministic else np.exp(self._log_std)

        def act(observations: FloatArray, rows: IntArray) -> FloatArray:
            mean: FloatArray = self._features(observations) @ W.T
            return mean + std * rng.standard_normal(mean.shape)

        return act

    def _score(self, rollout: Rollout) -> FloatArray:
        """Gradient of the log-likelihood of each episode that did not fail, (M, p)."""
        z = np.concatenate(self._deviations)[rollout.order]  # (a - W phi) / sigma, (T, a)
        std = np.exp(self._log_std)
        g, ends = [], np.cumsum(rollout.lengths)
        for episode in np.flatnonzero(~rollout.failed):  # its steps stand together
            steps = slice(ends[episode] - rollout.lengths[episode], ends[episode])
            phi = self._features(rollout.observations[steps])
            slope = (z[steps] / std).T @ phi
            g.append(np.concatenate([slope.ravel(), (np.square(z[steps]) - 1).sum(axis=0)]))
        return np.array(g)

    def arrays(self) -> dict[str, FloatArray]:
        """What was learned, by name."""
        return {"weights": self._W, "log_std": self._log_std}


def features_of(policy: Linear | Tiles) -> Features:
    """Features (N, f) in which the task's own policy is linear."""
    if isinstance(policy, Tiles):

        def tiles(observations: FloatArray) -> FloatArray:
            phi = np.zeros((len(observations), policy.n_features))
            active = policy.active(observations)
            phi[np.arange(len(active))[:, None], active] = 1.0
            return phi

        return tiles
    mean, std = policy._normalisation

    def linear(observations: FloatArray) -> FloatArray:
        x = (observations - mean) / std
        return np.hstack([x, np.ones((len(x), 1))]) if policy.bias else x

    return linear
