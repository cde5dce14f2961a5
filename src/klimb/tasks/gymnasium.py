"""Any Gymnasium environment as a task: ``make_task("gymnasium:Swimmer-v5", policy="linear")``.

The environment needs boxes of real numbers for actions and observations; a policy of
:mod:`klimb.policies`, by name or as an object, turns a parameter vector into actions. An episode begins with
``reset(seed=its own seed)``, actions are clipped to the action space, and the return is the (discounted) sum
of the rewards.

What counts as a failed episode, with the return NaN:

- a NaN among the observations or the actions, or a reward that is not finite;
- a warning of MuJoCo. It puts a simulation that diverged back to its start and carries on, which would turn a
  broken episode into a good-looking return;
- an exception that says that the numbers went astray: an ArithmeticError, numpy's LinAlgError, MuJoCo's
  FatalError, and what `failures` names.

Every other exception is a defect of the environment or the policy. It ends the evaluation, with a note that
says which episode it came from.
"""

from __future__ import annotations

import difflib
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, overload

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray, nearest, positive, samples, share, vector, whole
from klimb.policies import POLICIES, Policy, make_policy, observation_statistics
from klimb.tasks.film import Film, Frame
from klimb.tasks.task import episode_seeds

BoolArray = NDArray[np.bool_]
Environment = gymnasium.Env[Any, Any]
MakesEnvironment = str | Callable[..., Environment]
Look = Callable[[FloatArray], None]

INITIAL_STD = 0.3
# Observations are normalised by what so many random policies see, with these seeds.
NORMALISING_EPISODES = 10
NORMALISING_SEED = 0
LONGEST_FILM = 300  # frames


def gymnasium_task(
    environment: MakesEnvironment,
    *,
    policy: str | Policy = "linear",
    horizon: int | None = None,
    discount: float = 1.0,
    normalise: bool = False,
    initial_std: float = INITIAL_STD,
    options: Mapping[str, Any] | None = None,
    reuse: bool = True,
    failures: tuple[type[Exception], ...] = (),
    **policy_settings: Any,
) -> GymnasiumTask:
    """Make a task of an environment and a policy.

    Parameters
    ----------
    environment
        A Gymnasium id such as "Swimmer-v5", or "module:Name-v0" for one that importing the module registers;
        or a class or function that makes the environment (at the top level of a module, if worker processes
        shall find it).
    policy
        A name from :data:`klimb.policies.POLICIES` or a policy. By name, its sizes come from the environment,
        and so do the bounds of "tiles" where the observations have any.
    horizon
        Steps after which an episode ends; None: the environment's limit, or the policy's if that is shorter.
    discount
        Weight of a reward relative to that of the step before it.
    normalise
        Whether a "linear" policy sees observations less their mean, over their standard deviation. Both come
        from 10 episodes with random parameters, seeded, when the task is made, and do not change any more.
        ARS keeps running statistics of all episodes instead: they follow the policy to states it visits
        later, but then a return depends on which episodes came before.
    initial_std
        Standard deviation of the parameters to start with, around zero.
    options
        Keyword arguments for the making of the environment.
    reuse
        Whether an environment serves many episodes. False makes a new one for each, which helps if it carries
        something over from one episode to the next (``klimb check`` finds out), and costs time.
    failures
        Further exceptions that mean a failed episode, not a defect, such as that of a robot's driver.
    **policy_settings
        Settings of a policy that is given by name, such as ``bias=True`` or ``n_bases=10``.
    """
    options = dict(options or {})
    if horizon is not None and isinstance(environment, str):
        options.setdefault("max_episode_steps", whole("horizon", horizon, 1))
    name = _name(environment)
    env = make_environment(environment, options)
    try:
        spaces = _spaces(env, name)
        horizon = _horizon(horizon, env, getattr(policy, "horizon", None), name)
        if isinstance(policy, str):
            policy = _policy(policy, policy_settings, spaces, horizon, name, normalise)
        elif policy_settings or normalise:
            extra = ", ".join(["normalise"] * normalise + sorted(policy_settings))
            raise ValueError(
                f"{extra} cannot be given with a policy object; set it there, or name the policy."
            )
        _check_policy(policy, spaces, horizon, name)
    finally:
        env.close()
    task = GymnasiumTask(environment, policy, horizon, discount, initial_std, options, reuse, failures)
    return _normalised(task) if normalise else task


@dataclass(frozen=True)
class GymnasiumTask:
    """An environment and a policy; made and checked by :func:`gymnasium_task`, which explains the fields."""

    environment: MakesEnvironment
    policy: Policy
    horizon: int
    discount: float = 1.0
    initial_std: float = INITIAL_STD
    options: Mapping[str, Any] = field(default_factory=dict)
    reuse: bool = True
    failures: tuple[type[Exception], ...] = ()
    # Environments that no evaluation is using; threads that evaluate at once take one each.
    _idle: list[Environment] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        share("discount", self.discount)
        positive("initial_std", self.initial_std)
        exceptions = self.failures if isinstance(self.failures, tuple) else (self.failures,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in exceptions):
            raise ValueError(f"failures must be exception classes, but {self.failures!r} came.")
        object.__setattr__(self, "failures", exceptions)
        object.__setattr__(self, "options", dict(self.options))

    @property
    def name(self) -> str:
        """The id, or the name of what makes the environment."""
        return _name(self.environment)

    @property
    def n_parameters(self) -> int:
        """Those of the policy."""
        return self.policy.n_parameters

    @property
    def optimum(self) -> None:
        """Not known."""
        return

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[False] = False
    ) -> FloatArray: ...

    @overload
    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: Literal[True]
    ) -> tuple[FloatArray, BoolArray]: ...

    def evaluate(
        self, theta: ArrayLike, seed: int | ArrayLike = 0, *, return_success: bool = False
    ) -> FloatArray | tuple[FloatArray, BoolArray]:
        """Give the returns (N,) of the parameter vectors `theta` (N, n); NaN where an episode failed.

        With `return_success`, give also (N,): what the environment's info says under "is_success" after the
        last step, as is usual; a ValueError if it says nothing.
        """
        theta = samples("theta", theta, self.n_parameters)
        seeds = episode_seeds(seed, len(theta))
        returns, success = np.full(len(theta), np.nan), np.zeros(len(theta), dtype=np.bool_)
        for place, (row, episode_seed) in enumerate(zip(theta, seeds, strict=True)):
            episode = self._episode(row, int(episode_seed))
            if episode is None:
                continue
            returns[place] = episode.total
            if return_success:
                if "is_success" not in episode.info:
                    raise ValueError(
                        "return_success needs an environment whose info has 'is_success' after the last "
                        f"step, but that of {self.name} has: {', '.join(sorted(episode.info)) or 'nothing'}."
                    )
                success[place] = bool(episode.info["is_success"])
        return (returns, success) if return_success else returns

    def film(
        self,
        theta: ArrayLike,
        seed: int | ArrayLike = 0,
        *,
        width: int | None = None,
        height: int | None = None,
    ) -> Film:
        """Film the episode of one `theta` (n,) as the environment draws it, in the size that it chooses."""
        if width is not None or height is not None:
            raise ValueError(f"{self.name} draws in a size of its own; leave width and height out.")
        (row,) = samples("theta", vector("theta", theta)[None], self.n_parameters)
        (episode_seed,) = episode_seeds(seed, 1)
        env = make_environment(self.environment, {**self.options, "render_mode": "rgb_array"})
        every = -(-self.horizon // LONGEST_FILM)
        frames: list[Frame] = []
        steps = itertools.count()

        def look(observation: FloatArray) -> None:
            if next(steps) % every == 0:
                frames.append(np.asarray(env.render(), dtype=np.uint8))

        try:
            _run(env, self.policy, row, int(episode_seed), self.horizon, self.discount, look)
            rate = float(env.metadata.get("render_fps") or 30.0)
        except gymnasium.error.DependencyNotInstalled as error:
            raise RuntimeError(f"{self.name} cannot be drawn: {error}") from error
        finally:
            env.close()
        return Film(iter(frames), len(frames), min(rate, 30.0))

    def close(self) -> None:
        """Close the environments at hand; the next evaluation makes a new one."""
        while self._idle:
            self._idle.pop().close()

    def _episode(self, theta: FloatArray, seed: int, look: Look | None = None) -> Episode | None:
        """One episode, None if it failed; `look` is shown every observation that the policy acts on."""
        try:
            env = self._idle.pop()
        except IndexError:
            env = make_environment(self.environment, self.options)
        try:
            episode = _run(env, self.policy, theta, seed, self.horizon, self.discount, look)
        except (*simulator_failures(), *self.failures):
            episode = None
        except BaseException as error:
            error.add_note(f"klimb: this came from {self.name} in the episode with seed {seed}.")
            env.close()
            raise
        if self.reuse and episode is not None:
            self._idle.append(env)
        else:
            env.close()  # after a failure too: who knows what it left behind
        return episode

    def __getstate__(self) -> dict[str, Any]:
        # environments stay behind: few can be pickled, and a copy makes its own
        return {**self.__dict__, "_idle": []}


# ------------------------------------------------------------------------------------------------- an episode


class Episode(NamedTuple):
    """What is left of an episode that did not fail."""

    total: float
    """Its return."""
    info: Mapping[str, Any]
    """What the environment said after the last step."""


def _run(
    env: Environment,
    policy: Policy,
    theta: FloatArray,
    seed: int,
    horizon: int,
    discount: float,
    look: Look | None,
) -> Episode | None:
    """Run one episode; None if its numbers went astray."""
    space = env.action_space
    low, high = np.float64(space.low).ravel(), np.float64(space.high).ravel()  # type: ignore[attr-defined]
    theta = np.ascontiguousarray(theta)[None]
    total, weight = 0.0, 1.0
    # overflows in a policy or an environment are judged by what comes out of them
    with np.errstate(over="ignore", invalid="ignore"):
        movement = policy.trajectory(theta)[0] if hasattr(policy, "trajectory") else None
        observation, info = env.reset(seed=seed)
        seen = np.asarray(observation, dtype=np.float64).reshape(1, -1)
        for step in range(horizon):
            if look is not None:
                look(seen[0])
            action = policy.act(theta, seen, step)[0] if movement is None else movement[step]
            if np.isnan(seen).any() or np.isnan(action).any():
                return None
            action = np.minimum(np.maximum(action, low), high).astype(space.dtype).reshape(space.shape)
            observation, reward, terminated, truncated, info = env.step(action)
            reward = float(reward)
            if not math.isfinite(reward):
                return None
            total += weight * reward
            weight *= discount
            # a copy: some environments hand out the same array every time
            seen = np.array(observation, dtype=np.float64).reshape(1, -1)
            if terminated or truncated:
                break
    if np.isnan(seen).any() or not math.isfinite(total) or mujoco_warned(env):
        return None
    return Episode(total, info)


def mujoco_warned(env: Environment) -> bool:
    """Whether MuJoCo, if that is the simulator, has warned since the last reset."""
    mujoco = sys.modules.get("mujoco")  # if it is not loaded, nobody simulates with it
    data = getattr(env.unwrapped, "data", None)
    if mujoco is None or not isinstance(data, mujoco.MjData):
        return False
    return any(warning.number for warning in data.warning)


def simulator_failures() -> tuple[type[Exception], ...]:
    """What an environment's simulator raises where it breaks down."""
    mujoco = sys.modules.get("mujoco")
    simulator = () if mujoco is None else (mujoco.FatalError,)
    return (ArithmeticError, np.linalg.LinAlgError, *simulator)


# --------------------------------------------------------------------------- checks when a task is made


class Spaces(NamedTuple):
    """Lengths of observation and action, and the bounds of the observations."""

    n_observations: int
    n_actions: int
    low: FloatArray
    high: FloatArray


def _name(environment: MakesEnvironment) -> str:
    """The id, or the name of what makes the environment."""
    if isinstance(environment, str):
        return environment
    name: str = getattr(environment, "__qualname__", repr(environment))
    return name


def make_environment(environment: MakesEnvironment, options: Mapping[str, Any]) -> Environment:
    """Make the environment; whatever is wrong with the request is a ValueError."""
    name = _name(environment)
    if not (isinstance(environment, str) or callable(environment)):
        raise ValueError(
            "environment must be a Gymnasium id, or a class or function that makes an environment, but "
            f"{environment!r} came; an environment itself could not be copied to worker processes."
        )
    try:
        if isinstance(environment, str):
            # the checker would look at the first steps of the first episode only, and cost time
            return gymnasium.make(environment, disable_env_checker=True, **options)
        env = environment(**options)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ValueError(
            f"environment {name} cannot be made because something is not installed: {error}"
        ) from error
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(name, gymnasium.registry, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(
            f"unknown environment {name!r}: {error}{hint} gymnasium.pprint_registry() shows all; one of "
            "another package is written module:Name-v0, where importing the module registers it."
        ) from error
    except TypeError as error:
        if not options:
            raise  # not the user's words, but the environment's own fault
        raise ValueError(f"environment {name} cannot be made with these options: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise ValueError(f"environment must make a gymnasium.Env, but {name} made {env!r}.")
    return env


def _spaces(env: Environment, name: str) -> Spaces:
    """Look at the spaces; a ValueError if a policy cannot deal with them."""
    actions, observations = env.action_space, env.observation_space
    if not (isinstance(actions, Box) and np.issubdtype(actions.dtype, np.floating)):
        raise ValueError(
            f"the actions of {name} are {actions}, but policies give real numbers, so a Box of floats is "
            "needed; pass a function that wraps the environment in a gymnasium.ActionWrapper."
        )
    if not isinstance(observations, Box):
        raise ValueError(
            f"the observations of {name} are {observations}, but policies take a vector, so a Box is needed; "
            "pass a function that wraps the environment, as gymnasium.wrappers.FlattenObservation does."
        )
    low, high = np.float64(observations.low).ravel(), np.float64(observations.high).ravel()
    return Spaces(low.size, math.prod(actions.shape), low, high)


def _horizon(horizon: int | None, env: Environment, movement: int | None, name: str) -> int:
    """Steps of an episode: as asked for, or the shorter of what environment and policy allow."""
    limit = None if env.spec is None else env.spec.max_episode_steps
    if horizon is None:
        limits = [steps for steps in (limit, movement) if steps is not None]
        if not limits:
            raise ValueError(f"horizon is needed, as {name} sets no limit to its episodes.")
        return min(limits)
    horizon = whole("horizon", horizon, 1)
    if limit is not None and horizon > limit:
        raise ValueError(
            f"horizon must be at most {limit}, where {name} ends its episodes, but {horizon} came; raise "
            "that limit where the environment is made."
        )
    return horizon


def _policy(
    name: str, settings: Mapping[str, Any], spaces: Spaces, horizon: int, task: str, normalise: bool
) -> Policy:
    """Make the policy of that name to the measure of the environment."""
    if normalise and name != "linear":
        raise ValueError(f"normalise needs the policy 'linear', but {name!r} came.")
    if name in ("promp", "dmp"):
        sizes: dict[str, Any] = {"n_joints": spaces.n_actions, "horizon": horizon}
    elif name == "linear":
        sizes = {"n_observations": spaces.n_observations, "n_actions": spaces.n_actions}
    else:
        sizes = {"n_actions": spaces.n_actions}
    if name == "tiles" and np.isfinite([spaces.low, spaces.high]).all():
        everything = range(spaces.n_observations)
        columns = list(everything if settings.get("columns") is None else settings["columns"])
        if all(column in everything for column in columns):
            sizes |= {"low": spaces.low[columns], "high": spaces.high[columns]}
    if name in POLICIES:
        fixed = sizes.keys() - {"low", "high"}
        known = {
            *(set(inspect.signature(POLICIES[name]).parameters) - fixed),
            *(set(inspect.signature(gymnasium_task).parameters) - {"environment", "policy_settings"}),
        }
        for setting in settings:
            if setting not in known:
                raise ValueError(
                    f"unknown option {setting!r} of task 'gymnasium:{task}' with policy {name!r}: "
                    f"{nearest(setting, known)}"
                )
    return make_policy(name, **{**sizes, **settings})


def _check_policy(policy: Policy, spaces: Spaces, horizon: int, name: str) -> None:
    """Raise a ValueError if the policy does not fit the environment."""
    if not (hasattr(policy, "act") and hasattr(policy, "n_parameters") and hasattr(policy, "n_actions")):
        raise ValueError(
            "policy must be a name or have n_parameters, n_actions and act(theta, observations, step), but "
            f"{policy!r} came."
        )
    if policy.n_actions != spaces.n_actions:
        raise ValueError(
            f"policy gives {policy.n_actions} numbers per action, but {name} takes {spaces.n_actions}."
        )
    movement = getattr(policy, "horizon", None)
    if movement is not None and movement < horizon:
        raise ValueError(
            f"policy ends after {movement} steps, but an episode of {name} may last {horizon}: give both the "
            "same horizon."
        )
    try:
        policy.act(np.zeros((1, policy.n_parameters)), np.zeros((1, spaces.n_observations)), 0)
    except ValueError as error:
        raise ValueError(
            f"policy does not fit {name}, which has {spaces.n_observations} numbers per observation: {error}"
        ) from error


def _normalised(task: GymnasiumTask) -> GymnasiumTask:
    """The same task, its linear policy normalised by what random policies see."""
    rng = np.random.default_rng(NORMALISING_SEED)
    seen: list[FloatArray] = []
    for seed in episode_seeds(NORMALISING_SEED, NORMALISING_EPISODES):
        observations: list[FloatArray] = []
        theta = rng.normal(0.0, task.initial_std, task.n_parameters)
        if task._episode(theta, int(seed), observations.append) is not None:
            seen += observations
    if not seen:
        raise ValueError(
            f"normalise needs at least one random policy that survives in {task.name}, but all "
            f"{NORMALISING_EPISODES} failed; lower initial_std, or give mean and std of the observations."
        )
    mean, std = observation_statistics(np.array(seen))
    return replace(task, policy=replace(task.policy, mean=mean, std=std))  # type: ignore[type-var]
