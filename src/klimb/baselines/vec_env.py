"""klimb's environments as a VecEnv of stable-baselines3, whose N environments step at once.

    from stable_baselines3 import PPO
    env = make_vec_env(klimb.make_task("lqr"), 100)
    PPO("MlpPolicy", env, n_steps=50, gamma=0.9).learn(100_000)

`klimb run` does not need it to step, since it counts in episodes; anything of stable-baselines3 can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from stable_baselines3.common.vec_env.base_vec_env import VecEnv, VecEnvStepReturn

from klimb._validation import FloatArray
from klimb.baselines.deep import scaled
from klimb.baselines.stepping import Arena, make_arena
from klimb.tasks import Task


def make_vec_env(task: Task, count: int, seed: int = 0) -> ArenaVecEnv:
    """Make `count` environments of a task that step at once."""
    return ArenaVecEnv(make_arena(task, "a VecEnv", count), seed)


class ArenaVecEnv(VecEnv):
    """An arena as stable-baselines3 wants it: an environment that ends begins anew at once.

    Actions lie in [-1, 1], which is the range of the task's; rewards are not discounted.
    """

    def __init__(self, arena: Arena, seed: int = 0) -> None:
        self.arena = arena
        self._rows = np.arange(arena.count)
        self._rng = np.random.default_rng(seed)
        self._actions: FloatArray = np.zeros((arena.count, arena.n_actions))
        self._lengths = np.zeros(arena.count, dtype=np.int64)
        self._totals = np.zeros(arena.count)
        observation = Box(-np.inf, np.inf, (arena.n_observations,), dtype=np.float32)
        super().__init__(arena.count, observation, Box(-1.0, 1.0, (arena.n_actions,), dtype=np.float32))

    def reset(self) -> Any:
        """Begin all episodes."""
        self._lengths[:] = 0
        self._totals[:] = 0.0
        return self._begin(self._rows)

    def step_async(self, actions: Any) -> None:
        """Take the actions (N, a)."""
        self._actions = np.asarray(actions, dtype=np.float64)

    def step_wait(self) -> VecEnvStepReturn:
        """Step all environments; those that ended begin anew."""
        seen, rewards, over, cut, success = self.arena.step(self._rows, scaled(self.arena, self._actions))
        rewards = np.nan_to_num(rewards)  # a simulation that broke down
        self._lengths += 1
        self._totals += rewards
        late = (cut | (self._lengths >= self.arena.horizon)) & ~over
        done = over | late
        infos: list[dict[str, Any]] = [{} for _ in self._rows]
        ended = np.flatnonzero(done)
        seen = seen.astype(np.float32)
        for row in ended:
            infos[row] = {
                "terminal_observation": seen[row].copy(),
                "TimeLimit.truncated": bool(late[row]),
                "is_success": bool(success[row]),
                "episode": {"r": float(self._totals[row]), "l": int(self._lengths[row])},
            }
        if ended.size:
            self._lengths[ended] = 0
            self._totals[ended] = 0.0
            seen[ended] = self._begin(ended)
        return seen, rewards.astype(np.float32), done, infos

    def close(self) -> None:
        """Close the environments, where there is something to close."""
        close = getattr(self.arena, "close", None)
        if close is not None:
            close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Give an attribute of the arena, once per environment."""
        value = None if attr_name == "render_mode" else getattr(self.arena, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: the environments share what they are made of."""
        raise AttributeError(f"{attr_name} cannot be set: the environments are one object.")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: there are no single environments."""
        raise AttributeError(f"{method_name} cannot be called: the environments are one object.")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """Tell that none is wrapped."""
        return [False for _ in self._get_indices(indices)]

    def _get_indices(self, indices: int | Iterable[int] | None) -> Iterable[int]:
        if indices is None:
            return range(self.num_envs)
        return [indices] if isinstance(indices, int) else indices

    def _begin(self, rows: Any) -> Any:
        seeds = self._rng.integers(2**63, size=len(rows), dtype=np.uint64)
        return self.arena.reset(rows, seeds).astype(np.float32)
