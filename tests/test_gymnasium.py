"""Gymnasium environments as tasks, against plain loops over gymnasium.make(...)."""

from __future__ import annotations

import pickle
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from klimb.policies import DMP, Linear, ProMP, Tiles
from klimb.tasks import make_task
from klimb.tasks.gymnasium import gymnasium_task
from klimb.tasks.task import episode_seeds


def by_hand(name, controller, seed, steps=None, discount=1.0, **options):
    """The return of controller(observation, step) in a new environment, by the book."""
    env = gymnasium.make(name, **options)
    observation, _ = env.reset(seed=int(seed))
    total, step, over = 0.0, 0, False
    while not over and step != steps:
        wanted = np.clip(
            controller(observation.astype(float), step), env.action_space.low, env.action_space.high
        )
        observation, reward, terminated, truncated, _ = env.step(np.float32(wanted))
        total += discount**step * float(reward)
        over, step = terminated or truncated, step + 1
    env.close()
    return total


def draws(task, count, seed=0, std=None):
    return np.random.default_rng(seed).normal(0, std or task.initial_std, (count, task.n_parameters))


class Scripted(gymnasium.Env):
    """Two numbers observed, one action; goes wrong as told, and counts what must not leak."""

    metadata = {"render_modes": []}  # noqa: RUF012
    observation_space = spaces.Box(-10, 10, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    made = 0

    def __init__(self, fault=None, leaks=False, success=True):
        type(self).made += 1
        self.fault, self.leaks, self.success, self.carried = fault, leaks, success, 0.0
        self.buffer = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.buffer[:] = self.np_random.uniform(-1, 1, 2)
        return self.buffer, {}

    def step(self, action):
        self.steps += 1
        self.carried += self.leaks
        self.buffer += 0.1 * action
        reward = float(self.buffer.sum()) + self.carried
        # only bold policies meet the fault
        if self.fault and abs(action[0]) > 0.5 and self.steps == 3:
            if isinstance(self.fault, type):
                raise self.fault("as told")
            if self.fault == "observation":
                self.buffer[0] = np.nan
            else:
                reward = float(self.fault)
        info = {"is_success": bool(reward > 0)} if self.success else {"speed": 1}
        return self.buffer, reward, False, False, info


BOLD_AND_MEEK = np.array([[9.0, 9.0, 9.0], [0.01, 0.0, 0.0], [-9.0, 9.0, 9.0], [0.0, 0.02, 0.0]])


def scripted(**options):
    settings = {name: options.pop(name) for name in ("reuse", "failures") if name in options}
    return gymnasium_task(Scripted, horizon=5, bias=True, options=options, **settings)


# Returns


@pytest.mark.parametrize(("name", "steps"), [("Pendulum-v1", None), ("Swimmer-v5", 60), ("Hopper-v5", None)])
@pytest.mark.parametrize("discount", [1.0, 0.97])
def test_returns_are_those_of_a_plain_loop(name, steps, discount):
    task = make_task(f"gymnasium:{name}", bias=True, horizon=steps, discount=discount)
    theta, seeds = draws(task, 4, std=1.0), episode_seeds(5, 4)
    n_actions, n_observations = task.policy.n_actions, task.policy.n_observations
    for row, seed, value in zip(theta, seeds, task.evaluate(theta, 5), strict=True):
        gains = row[: n_actions * n_observations].reshape(n_actions, n_observations)
        offset = row[n_actions * n_observations :]
        # a sum of products, as W @ x may round in another order and contacts amplify that
        expected = by_hand(
            name, lambda x, _, W=gains, b=offset: (W * x).sum(axis=-1) + b, seed, steps, discount
        )
        assert value == (expected if discount == 1 else pytest.approx(expected, rel=1e-12))


def test_returns_of_a_movement_are_exactly_those_of_a_plain_loop():
    task = make_task("gymnasium:Swimmer-v5", policy="promp", n_bases=4, horizon=50)
    theta = draws(task, 3, std=0.7)
    assert task.n_parameters == 8
    assert task.policy == ProMP(2, 4, 50)
    movement = ProMP(2, 4, 50).trajectory(theta)
    for k, seed in enumerate(episode_seeds(1, 3)):
        expected = by_hand("Swimmer-v5", lambda _, step, k=k: movement[k, step], seed, 50)
        assert task.evaluate(theta, 1)[k] == expected


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("Pendulum-v1", {}, 7),
        ("Swimmer-v5", {"horizon": 40, "normalise": True}, 5),
        ("Hopper-v5", {"bias": True}, 5),  # episodes of different lengths, with contacts
        ("Pendulum-v1", {"policy": "dmp", "n_bases": 5}, 4),
        ("Pendulum-v1", {"policy": "tiles", "tiles": (3, 3, 4)}, 4),
    ],
)
def test_a_return_has_the_same_bits_in_every_batch(name, options, count):
    task = make_task(f"gymnasium:{name}", **options)
    theta, seeds = draws(task, count), episode_seeds(3, count)
    together = task.evaluate(theta, 3)
    assert np.isfinite(together).all()
    order = np.random.default_rng(1).permutation(count)
    assert np.array_equal(task.evaluate(theta[order], seeds[order]), together[order])
    fresh = [
        make_task(f"gymnasium:{name}", **options).evaluate(theta[k][None], seeds[k : k + 1])[0] for k in order
    ]
    assert np.array_equal(fresh, together[order])
    assert np.array_equal(pickle.loads(pickle.dumps(task)).evaluate(theta, 3), together)
    assert np.array_equal(make_task(f"gymnasium:{name}", reuse=False, **options).evaluate(theta, 3), together)
    assert np.array_equal(task.evaluate(np.asfortranarray(theta), 3), together)


def test_threads_do_not_share_an_environment():
    task = make_task("gymnasium:Pendulum-v1")
    theta, found = draws(task, 6), {}

    def evaluate(place):
        found[place] = task.evaluate(theta, place)

    threads = [threading.Thread(target=evaluate, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place in range(3):
        assert np.array_equal(found[place], task.evaluate(theta, place))


def test_environments_are_reused_unless_they_leak():
    Scripted.made = 0
    task = scripted()
    first = task.evaluate(BOLD_AND_MEEK, 0)
    assert Scripted.made == 2  # one to look at, one to evaluate in
    assert np.array_equal(task.evaluate(BOLD_AND_MEEK, 0), first)
    assert Scripted.made == 2
    leaky, clean = scripted(leaks=True), scripted(leaks=True, reuse=False)
    assert not np.array_equal(leaky.evaluate(BOLD_AND_MEEK, 0), leaky.evaluate(BOLD_AND_MEEK, 0))
    assert np.array_equal(clean.evaluate(BOLD_AND_MEEK, 0), clean.evaluate(BOLD_AND_MEEK, 0))


def test_horizon_cuts_or_extends():
    theta = np.zeros((1, 3))
    short = make_task("gymnasium:Pendulum-v1", horizon=10)
    assert short.evaluate(theta, [3])[0] == by_hand("Pendulum-v1", lambda x, _: np.zeros(1), 3, 10)
    assert make_task("gymnasium:Pendulum-v1").horizon == 200
    longer = make_task("gymnasium:Pendulum-v1", horizon=300).evaluate(theta, [3])[0]
    assert longer == by_hand("Pendulum-v1", lambda x, _: np.zeros(1), 3, max_episode_steps=300)
    assert gymnasium_task("Pendulum-v1", policy=ProMP(1, 5, 120)).horizon == 120
    assert gymnasium_task("Pendulum-v1", policy=ProMP(1, 5, 1000)).horizon == 200


def test_options_reach_the_environment():
    heavy = make_task("gymnasium:Pendulum-v1", options={"g": 20.0}).evaluate(np.zeros((1, 3)), [3])[0]
    assert heavy == by_hand("Pendulum-v1", lambda x, _: np.zeros(1), 3, g=20.0)


def test_normalising_uses_what_random_policies_see_and_then_never_changes():
    task = make_task("gymnasium:Swimmer-v5", horizon=30, normalise=True)
    plain = make_task("gymnasium:Swimmer-v5", horizon=30)
    again = make_task("gymnasium:Swimmer-v5", horizon=30, normalise=True)
    assert task.policy == again.policy
    rng, seen = np.random.default_rng(0), []
    for seed in episode_seeds(0, 10):
        gains = rng.normal(0, 0.3, (2, 8))

        def controller(x, _, gains=gains):
            seen.append(x)
            return (gains * x).sum(axis=-1)

        by_hand("Swimmer-v5", controller, seed, 30)
    np.testing.assert_allclose(task.policy.mean, np.mean(seen, axis=0), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(task.policy.std, np.std(seen, axis=0, ddof=1), rtol=1e-12)
    before = task.policy
    task.evaluate(draws(task, 3), 0)
    assert task.policy is before
    assert not np.array_equal(task.evaluate(draws(task, 3), 0), plain.evaluate(draws(task, 3), 0))


# Failures


@pytest.mark.parametrize(
    "fault", ["observation", "nan", "inf", "-inf", ZeroDivisionError, np.linalg.LinAlgError]
)
def test_numbers_gone_astray_fail_their_episode_only(fault):
    task, healthy = scripted(fault=fault), scripted()
    returns, success = task.evaluate(BOLD_AND_MEEK, 0, return_success=True)
    assert np.isnan(returns).tolist() == [True, False, True, False]
    assert np.array_equal(returns[1::2], healthy.evaluate(BOLD_AND_MEEK, 0)[1::2])
    assert not success[::2].any()


def test_a_robots_own_exception_can_count_as_a_failure():
    with pytest.raises(TimeoutError, match="as told") as caught:
        scripted(fault=TimeoutError).evaluate(BOLD_AND_MEEK, 0)
    assert "Scripted in the episode with seed" in caught.value.__notes__[0]
    returns = scripted(fault=TimeoutError, failures=(TimeoutError,)).evaluate(BOLD_AND_MEEK, 0)
    assert np.isnan(returns).tolist() == [True, False, True, False]


@pytest.mark.parametrize("fault", [TypeError, KeyError, ValueError, AssertionError])
def test_defects_are_not_swallowed(fault):
    with pytest.raises(fault, match="as told"):
        scripted(fault=fault).evaluate(BOLD_AND_MEEK, 0)


class Exploding(gymnasium.Wrapper):
    """Swimmer whose simulation diverges if the first action is large."""

    def __init__(self):
        super().__init__(gymnasium.make("Swimmer-v5", disable_env_checker=True))

    def step(self, action):
        if abs(action[0]) > 0.9:
            self.unwrapped.data.qvel[:] = 1e12
        return super().step(action)


def test_a_simulation_that_mujoco_put_back_to_its_start_is_a_failed_episode(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file
    task = gymnasium_task(Exploding, horizon=5, policy=ProMP(2, 1, 5))
    calm, wild = [0.1, 0.1], [5.0, 0.0]
    returns = task.evaluate([calm, wild, calm], [1, 2, 1])
    assert np.isnan(returns).tolist() == [False, True, False]
    assert returns[0] == returns[2] == by_hand("Swimmer-v5", lambda *_: calm, 1, 5)


def test_parameters_of_any_size_are_survived():
    task = make_task("gymnasium:Pendulum-v1", bias=True)
    returns = task.evaluate(np.array([1e150, -1e150, 1e150, 1e150]) * np.ones((2, 4)), 0)
    assert returns.shape == (2,)
    assert not np.isinf(returns).any()


def test_success_is_what_the_environment_says_last():
    theta, seeds = np.array([[0.0, 0.0, 9.0], [0.0, 0.0, -9.0]] * 10), np.arange(20) // 2
    returns, success = scripted().evaluate(theta, seeds, return_success=True)
    starts = np.array([np.random.default_rng(seed).uniform(-1, 1, 2).sum() for seed in seeds])
    assert np.array_equal(success, starts + np.sign(theta[:, 2]) > 0)  # two entries, .1 in each of five steps
    assert success.dtype == np.bool_
    assert np.array_equal(scripted().evaluate(theta, seeds), returns)
    with pytest.raises(ValueError, match=r"info has 'is_success' .* Scripted has: speed"):
        scripted(success=False).evaluate(np.zeros((1, 3)), return_success=True)


# Requests that cannot be met


def flat_tuple():
    env = Scripted()
    env.observation_space = spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1)])
    return env


def whole_actions():
    env = Scripted()
    env.action_space = spaces.Box(0, 5, (1,), dtype=np.int64)
    return env


@pytest.mark.parametrize(
    ("environment", "options", "message"),
    [
        ("Pendulun-v1", {}, "unknown environment 'Pendulun-v1': .* Did you mean 'Pendulum-v1'"),
        ("Pendulum-v7", {}, "unknown environment 'Pendulum-v7': .* Did you mean 'Pendulum-v1'"),
        ("a b", {}, "unknown environment 'a b'"),
        ("no_such_module:X-v0", {}, "no_such_module:X-v0 cannot be made because .* not installed: No module"),
        ("LunarLander-v3", {"options": {"continuous": True}}, "LunarLander-v3 .* not installed: .*box2d"),
        (
            "CartPole-v1",
            {},
            r"actions of CartPole-v1 are Discrete\(2\), but .* Box of floats .*ActionWrapper",
        ),
        (flat_tuple, {"horizon": 5}, "observations of flat_tuple are Tuple.*FlattenObservation"),
        (whole_actions, {"horizon": 5}, "actions of whole_actions are Box.*int64.* Box of floats"),
        (Scripted, {}, "horizon is needed, as Scripted sets no limit"),
        (Scripted(), {}, "environment must be a Gymnasium id, or a class or function"),
        (dict, {}, "environment must make a gymnasium.Env, but dict made {}"),
        ("Pendulum-v1", {"policy": Linear(4, 1)}, "policy does not fit Pendulum-v1, which has 3 numbers"),
        (
            "Pendulum-v1",
            {"policy": Linear(3, 2)},
            "policy gives 2 numbers per action, but Pendulum-v1 takes 1",
        ),
        (
            "Pendulum-v1",
            {"policy": DMP(1, 5, 50), "horizon": 60},
            "policy ends after 50 steps, but .* last 60",
        ),
        ("Pendulum-v1", {"policy": "linar"}, "unknown policy 'linar': did you mean 'linear'"),
        ("Pendulum-v1", {"policy": 3}, "policy must be a name or have n_parameters"),
        ("Pendulum-v1", {"policy": Linear(3, 1), "bias": True}, "bias cannot be given with a policy object"),
        (
            "Pendulum-v1",
            {"policy": Linear(3, 1), "normalise": True},
            "normalise cannot be given with a policy",
        ),
        ("Pendulum-v1", {"policy": "promp"}, "policy 'promp' needs a value for n_bases"),
        (
            "Pendulum-v1",
            {"policy": "promp", "n_bases": 3, "normalise": True},
            "normalise needs the policy 'linear'",
        ),
        ("Swimmer-v5", {"policy": "tiles", "tiles": (2,) * 8}, "policy 'tiles' needs a value for low, high"),
        ("Pendulum-v1", {"horizn": 5}, "unknown option 'horizn' of task 'gymnasium:Pendulum-v1'.*'horizon'"),
        ("Pendulum-v1", {"n_actions": 5}, "unknown option 'n_actions'"),
        ("Pendulum-v1", {"horizon": 0}, "horizon must be a whole number of at least 1, but 0 came"),
        ("Pendulum-v1", {"discount": 1.5}, "discount must lie in"),
        ("Pendulum-v1", {"initial_std": 0}, "initial_std must be a number above 0"),
        ("Pendulum-v1", {"options": {"gg": 3}}, "Pendulum-v1 cannot be made with these options: .*gg"),
        ("Pendulum-v1", {"failures": (3,)}, "failures must be exception classes"),
        (Exploding, {"horizon": 2000}, "horizon must be at most 1000, where Exploding ends"),
    ],
)
def test_what_cannot_be_done_is_said(environment, options, message):
    with pytest.raises(ValueError, match=message):
        gymnasium_task(environment, **options)


def test_an_option_that_the_name_stands_for_cannot_be_given():
    with pytest.raises(ValueError, match="unknown option 'environment' of task 'gymnasium:Pendulum-v1'"):
        make_task("gymnasium:Pendulum-v1", environment="Swimmer-v5")
    with pytest.raises(ValueError, match="unknown task 'gymnasum': did you mean 'gymnasium:ID'"):
        make_task("gymnasum")


def test_all_random_policies_failing_is_said():
    with pytest.raises(ValueError, match="normalise needs at least one random policy that survives"):
        gymnasium_task(
            Scripted, horizon=5, bias=True, normalise=True, initial_std=1e3, options={"fault": "nan"}
        )


def test_tiles_take_their_bounds_from_the_observations():
    task = make_task("gymnasium:Pendulum-v1", policy="tiles", tiles=(2, 3), n_tilings=2, columns=(0, 2))
    assert task.policy == Tiles((-1.0, -8.0), (1.0, 8.0), (2, 3), 2, columns=(0, 2))
