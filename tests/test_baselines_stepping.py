"""Baselines that act step by step: checked against Gymnasium, stable-baselines3 and the tasks themselves."""

from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

import klimb
from klimb.baselines import train
from klimb.baselines.reinforce import LinearGaussian, features_of
from klimb.baselines.stepping import make_arena, run
from klimb.tasks import episode_seeds
from klimb.tasks.environments import (
    AirHockeyEnvironment,
    BallStoppingEnvironment,
    LQREnvironment,
    ShipSteeringEnvironment,
)

needs_deep = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "stable_baselines3", "sb3_contrib")),
    reason="needs pip install 'klimb[deep]'",
)
DEEP = [pytest.param("ppo", marks=needs_deep), pytest.param("trpo", marks=needs_deep)]
STEPWISE = [*DEEP, "reinforce", "ars"]

SIDES = {
    "lqr": ("lqr", {}, lambda: TimeLimit(LQREnvironment(), 50)),
    "lqr random": ("lqr", {"start": "random", "n_states": 4}, None),
    "ship": ("ship-steering", {}, lambda: TimeLimit(ShipSteeringEnvironment(), 5000)),
    "ship random": ("ship-steering", {"start": "random", "horizon": 30}, None),
    "air hockey": (
        "air-hockey",
        {"puck": "random"},
        lambda: TimeLimit(AirHockeyEnvironment(puck="random"), 120),
    ),
    "ball": (
        "ball-stopping",
        {"ball": "random"},
        lambda: TimeLimit(BallStoppingEnvironment(ball="random"), 750),
    ),
    "pendulum": ("gymnasium:Pendulum-v1", {"discount": 0.95}, lambda: gymnasium.make("Pendulum-v1")),
}
SIDES["lqr random"] = (
    *SIDES["lqr random"][:2],
    lambda: TimeLimit(LQREnvironment(start="random", n_states=4), 50),
)
SIDES["ship random"] = (
    *SIDES["ship random"][:2],
    lambda: TimeLimit(ShipSteeringEnvironment(start="random"), 30),
)


def make(name, **settings):
    if name == "ars":
        settings = {"version": "v2-t", **settings}
    return klimb.make_algorithm(name, **settings)


# environments that step at once


@pytest.mark.parametrize("side", SIDES)
def test_arena_does_what_single_environments_do(side):
    name, options, make_environment = SIDES[side]
    task = klimb.make_task(name, **options)
    arena = make_arena(task, "a test", 3)
    seeds = episode_seeds(4, 3)
    actions = np.random.default_rng(1).uniform(
        1.5 * arena.low, 1.5 * arena.high, (arena.horizon, arena.n_actions)
    )
    counter = [0]

    def act(observations, rows):
        counter[0] += 1
        return np.tile(actions[counter[0] - 1], (len(rows), 1))

    rollout = run(arena, act, seeds)
    first = np.cumsum(rollout.lengths) - rollout.lengths
    for episode, seed in enumerate(seeds):
        env = make_environment()
        observation, _ = env.reset(seed=int(seed))
        total = 0.0
        for step in range(arena.horizon):
            place = first[episode] + step
            assert np.array_equal(rollout.observations[place], observation)
            clipped = np.clip(actions[step], arena.low, arena.high).astype(env.action_space.dtype)
            observation, reward, terminated, truncated, info = env.step(clipped)
            assert rollout.rewards[place] == pytest.approx(reward, rel=1e-12, abs=1e-12)
            total += arena.discount**step * reward
            if terminated or truncated:
                break
        assert rollout.lengths[episode] == step + 1
        assert rollout.terminated[episode] == terminated
        assert rollout.success[episode] == info.get("is_success", False)
        assert np.array_equal(rollout.last[episode], observation)
        assert rollout.returns[episode] == pytest.approx(total, rel=1e-12)
    assert arena.tells_success == ("is_success" in info)


@pytest.mark.parametrize("start", ["fixed", "random"])
@pytest.mark.parametrize("name", ["lqr", "ship-steering"])
def test_returns_of_the_tasks_own_policy_are_those_of_the_task(name, start):
    task = klimb.make_task(name, start=start)
    theta = np.random.default_rng(0).normal(0, task.initial_std, (20, task.n_parameters))
    arena = make_arena(task, "a test", 20)
    seeds = episode_seeds(9, 20)
    rollout = run(arena, lambda observations, rows: arena.policy.act(theta[rows], observations, 0), seeds)
    assert np.allclose(rollout.returns, task.evaluate(theta, seeds), rtol=1e-10)
    assert np.array_equal(np.bincount(rollout.episode), rollout.lengths)


def test_simulation_that_breaks_down_is_a_failed_episode():
    class Fragile(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._kind, self._step = seed % 4, 0
            return np.zeros(1), {}

        def step(self, action):
            self._step += 1
            if self._step == 3 and self._kind == 1:
                raise FloatingPointError("overflow")
            observation = np.full(1, np.nan if self._step == 3 and self._kind == 2 else 0.5)
            reward = np.nan if self._step == 3 and self._kind == 3 else 1.0
            return observation, reward, False, False, {}

    from klimb.tasks.gymnasium import gymnasium_task

    task = gymnasium_task(Fragile, horizon=5)
    arena = make_arena(task, "a test", 4)
    rollout = run(arena, lambda observations, rows: np.zeros((len(rows), 1)), np.arange(4, dtype=np.uint64))
    assert rollout.failed.tolist() == [False, True, True, True]
    assert rollout.returns[0] == 5
    assert rollout.lengths.tolist() == [5, 3, 3, 3]
    for name in STEPWISE:
        if isinstance(name, str) or find_spec("sb3_contrib"):
            algorithm = make(name if isinstance(name, str) else name.values[0])
            result = train(task, algorithm, episodes=16, batch=8, seed=0)
            assert 0 < result.n_failed < 16
            assert np.isfinite(result.mean).all()


@pytest.mark.parametrize("name", ["air-hockey", "ball-stopping"])
def test_robot_that_breaks_down_ends_its_episode_and_can_begin_anew(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    arena = make_arena(klimb.make_task(name), "a test", 3)
    rows, seeds = np.arange(3), episode_seeds(0, 3)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (4, 3, arena.n_actions))
    arena.reset(rows, seeds)
    expected = [arena.step(rows, action) for action in actions]

    arena.reset(rows, seeds)
    arena._simulations._batch.qvel[1] = 1e12
    moves = arena.step(rows, actions[0])
    assert np.isnan(moves.rewards).tolist() == [False, True, False]
    assert moves.over.tolist() == [False, True, False]
    assert not moves.success.any()
    unknown = np.where(rows[:, None] == 2, np.nan, actions[1])
    assert np.isnan(arena.step(rows[[0, 2]], unknown[[0, 2]]).rewards).tolist() == [False, True]

    arena.reset(rows[1:], seeds[1:])
    for action, wanted in zip(actions, expected, strict=True):
        moves = arena.step(rows[1:], action[1:])
        assert np.array_equal(moves.rewards, wanted.rewards[1:])
        assert np.array_equal(moves.observations, wanted.observations[1:])


def test_task_without_an_environment_says_which_algorithms_can():
    for task in (klimb.make_task("sphere"), klimb.tasks.task_from_function(lambda theta: 0.0, 3)):
        with pytest.raises(ValueError, match=r"has none.*dr-creps or cma-es"):
            train(task, klimb.make_algorithm("reinforce"), episodes=10, batch=5)


def test_maximize_says_who_runs_those_who_act():
    with pytest.raises(ValueError, match=r"reinforce acts step by step.*klimb\.baselines\.train"):
        klimb.maximize(klimb.make_task("lqr"), make("reinforce"), mean=np.zeros(100), std=0.3, episodes=10)


# the VecEnv of stable-baselines3


@needs_deep
@pytest.mark.parametrize("name", ["lqr", "ship-steering"])
def test_vec_env_does_what_stable_baselines_own_does(name):
    from stable_baselines3.common.vec_env import DummyVecEnv

    from klimb.baselines.vec_env import make_vec_env

    single = {"lqr": "klimb/LQR-v0", "ship-steering": "klimb/ShipSteering-v0"}[name]
    ours = make_vec_env(klimb.make_task(name), 3)
    own = DummyVecEnv([lambda: gymnasium.make(single)] * 3)
    half = own.action_space.high
    assert np.array_equal(ours.reset(), own.reset().astype(np.float32))
    rng = np.random.default_rng(0)
    ended = 0
    for _ in range(200):
        actions = rng.uniform(-1, 1, (3, ours.action_space.shape[0]))
        a, b = ours.step(actions), own.step(half * actions)
        assert np.allclose(a[0], b[0], rtol=1e-6)
        assert np.allclose(a[1], b[1], rtol=1e-6)
        assert np.array_equal(a[2], b[2])
        for mine, theirs in zip(a[3], b[3], strict=True):
            for key in ("TimeLimit.truncated", "terminal_observation"):
                if "terminal_observation" in theirs:
                    assert np.allclose(mine[key], theirs[key], rtol=1e-6)
        ended += a[2].sum()
    assert ended > 0
    assert ours.get_attr("horizon") == [ours.arena.horizon] * 3
    assert ours.env_is_wrapped(object) == [False] * 3
    ours.close()


@needs_deep
def test_plain_stable_baselines_learns_in_our_vec_env():
    import torch
    from stable_baselines3 import PPO

    from klimb.baselines.vec_env import make_vec_env

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", make_vec_env(klimb.make_task("lqr"), 10), n_steps=50, batch_size=500, gamma=0.9)
    model.learn(1000)
    assert len(model.ep_info_buffer) == 20
    assert {info["l"] for info in model.ep_info_buffer} == {50}


# learning


def test_scores_of_reinforce_are_gradients_of_the_log_likelihood():
    task = klimb.make_task("lqr", n_states=3, n_effective=2, horizon=4)
    arena = make_arena(task, "a test", 2)
    agent = LinearGaussian({"step_size": 0.01, "initial_std": 0.5}, arena, 0)
    agent._W = np.random.default_rng(3).normal(0, 0.3, (3, 3))
    acted = []
    explore = agent.explore()
    rollout = run(arena, lambda x, rows: acted.append(explore(x, rows)) or acted[-1], episode_seeds(0, 2))
    actions = np.concatenate(acted)[rollout.order]

    def log_likelihood(parameters, episode):
        W, log_std = parameters[:9].reshape(3, 3), parameters[9:]
        steps = rollout.episode == episode
        z = (actions[steps] - rollout.observations[steps] @ W.T) / np.exp(log_std)
        return -(0.5 * z**2 + log_std).sum()

    parameters = np.concatenate([agent._W.ravel(), agent._log_std])
    scores = agent._score(rollout)
    for episode in range(2):
        for i, e in enumerate(np.eye(12)):
            slope = [log_likelihood(parameters + h * e, episode) for h in (1e-5, -1e-5)]
            assert scores[episode, i] == pytest.approx((slope[0] - slope[1]) / 2e-5, rel=1e-5, abs=1e-6)


def test_step_of_reinforce_has_its_length():
    result = train(klimb.make_task("lqr"), make("reinforce", step_size=0.04), episodes=20, batch=20)
    agent = result.optimizer.agent
    step = np.concatenate([agent._W.ravel(), agent._log_std - np.log(0.5)])
    assert np.linalg.norm(step) == pytest.approx(0.2)


def test_features_are_those_that_the_tasks_policy_is_linear_in():
    ship, rng = klimb.make_task("ship-steering"), np.random.default_rng(0)
    states = ship.start_states(np.arange(5))
    pendulum = klimb.make_task("gymnasium:Pendulum-v1", bias=True, normalise=True)
    for policy, seen in ((ship.policy, states), (pendulum.policy, rng.normal(size=(5, 3)))):
        theta = rng.normal(size=policy.n_parameters)
        expected = policy.act(np.tile(theta, (5, 1)), seen, 0)
        assert np.allclose(features_of(policy)(seen) @ theta[:, None], expected)


def test_learned_gains_of_reinforce_are_parameters_of_the_task():
    task = klimb.make_task("lqr")
    result = train(task, make("reinforce"), episodes=3000, batch=100, seed=0)
    returns, _ = result.evaluate([1, 2], deterministic=True)
    assert np.allclose(returns, task.evaluate(result.mean[None])[0])
    assert returns[0] > -3


def test_ars_v2_normalises_by_all_that_was_seen():
    task = klimb.make_task("gymnasium:Pendulum-v1", horizon=20)
    result = train(task, make("ars"), episodes=64, batch=32)
    statistics = result.optimizer.agent.arrays()
    assert statistics["mean"].shape == (3,)
    assert (statistics["deviation"] > 0).all()
    assert (statistics["deviation"] != 1).all()
    x = np.array([[0.1, 0.2, 0.3]])
    action = result.optimizer.agent.policy(True, np.random.default_rng())(x, np.zeros(1, int))
    assert np.allclose(
        action, statistics["weights"] @ ((x[0] - statistics["mean"]) / statistics["deviation"])
    )


@pytest.mark.parametrize("name", STEPWISE)
def test_every_learner_improves_on_the_lqr_within_its_budget(name):
    task, seen = klimb.make_task("lqr"), []
    small = {"initial_std": 0.3}
    settings = {"ppo": small, "trpo": {**small, "max_kl": 0.1}, "ars": {"learning_rate": 0.1}}.get(name, {})
    result = train(
        task,
        make(name, **settings),
        episodes=635,
        batch=40,
        seed=0,
        callback=lambda p: seen.append(p.returns),
    )
    assert result.episodes == 600 == sum(map(len, seen))
    assert result.curve["episodes"].tolist() == list(range(40, 601, 40))
    assert result.best_return == max(returns.max() for returns in seen)
    deterministic = result.evaluate(range(3), deterministic=True)[0].mean()
    assert -8.864 < deterministic < task.optimum  # better than to do nothing
    assert result.curve["mean_return"][-1] > result.curve["mean_return"][0]


@pytest.mark.parametrize("name", STEPWISE)
def test_same_seed_is_the_same_run_and_global_generators_are_left_alone(name):
    task = klimb.make_task("lqr")
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    runs = []
    for state, seed in enumerate((1, 1, 2)):
        if find_spec("torch"):
            import torch

            torch.manual_seed(state)  # the global state is of no account
        runs.append(train(task, make(name), episodes=40, batch=20, seed=seed))
    assert np.array_equal(runs[0].mean, runs[1].mean)
    assert not np.array_equal(runs[0].mean, runs[2].mean)
    assert np.array_equal(before, np.random.get_state()[1])  # noqa: NPY002
    evaluated = [each.evaluate(range(30), deterministic=False)[0] for each in runs[:2]]
    assert np.array_equal(*evaluated)


@pytest.mark.parametrize("name", DEEP)
def test_networks_are_the_papers_and_advantages_those_of_each_episode(name):
    task = klimb.make_task("ship-steering", horizon=40, start="random")
    algorithm = make(name)
    arena = make_arena(task, name, 12)
    agent = algorithm.agent(arena, 12, 0)
    shapes = {key: value.shape for key, value in agent.arrays().items()}
    for part in ("policy", "value"):
        assert shapes[f"mlp_extractor.{part}_net.0.weight"] == (32, 4)
        assert shapes[f"mlp_extractor.{part}_net.2.weight"] == (32, 32)
    assert agent.model.gamma == 0.99
    rollout = run(arena, agent.explore(), episode_seeds(3, 12))
    assert 0 < rollout.terminated.sum() < 12
    values = np.concatenate([taken[2] for taken in agent._taken])[rollout.order]
    beyond = agent._look(agent._seen(rollout.last))[2]
    agent.learn(rollout)
    for episode in range(12):
        steps = np.flatnonzero(rollout.episode == episode)
        # generalised advantage estimate, from its definition
        following = np.append(values[steps][1:], 0.0 if rollout.terminated[episode] else beyond[episode])
        deltas = rollout.rewards[steps] + 0.99 * following - values[steps]
        advantages = [(0.99 * 0.95) ** np.arange(len(deltas) - t) @ deltas[t:] for t in range(len(deltas))]
        made = agent.model.rollout_buffer.advantages.ravel()[steps]
        assert np.allclose(made, advantages, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", DEEP)
def test_log_probabilities_are_those_of_the_model(name):
    import torch

    agent = make(name).agent(make_arena(klimb.make_task("lqr"), name, 5), 5, 0)
    agent.explore()(np.random.default_rng(0).normal(size=(5, 10)), np.arange(5))
    seen, actions, values, log_probabilities = agent._taken[0]
    with torch.no_grad():
        v, log_p, _ = agent.model.policy.evaluate_actions(
            torch.as_tensor(seen, dtype=torch.float32), torch.as_tensor(actions, dtype=torch.float32)
        )
    assert np.allclose(log_probabilities, log_p.numpy(), rtol=1e-4)
    assert np.allclose(values, v.numpy().ravel())


@pytest.mark.parametrize("name", DEEP)
def test_pendulum_is_learned_a_little_in_a_few_seconds(name):
    task = klimb.make_task("gymnasium:Pendulum-v1")
    settings = {"learning_rate": 1e-3, "gamma": 0.9, **({"max_kl": 0.03} if name == "trpo" else {})}
    result = train(task, make(name, **settings), episodes=60, batch=10, seed=0)
    assert result.curve["mean_return"][-1] > -1700
    assert result.n_failed == 0
    # the whole of it is `python benchmarks/baselines.py --pendulum`; docs/baselines.md has its result


@pytest.mark.parametrize("name", STEPWISE)
def test_what_was_learned_can_be_saved(name, tmp_path):
    result = train(klimb.make_task("lqr"), make(name), episodes=20, batch=10)
    result.optimizer.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        for key, value in result.optimizer.agent.arrays().items():
            assert np.array_equal(file[key], value)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("reinforce", {"step_size": 0}, "step_size must be a number above 0"),
        ("reinforce", {"step": 1}, "did you mean 'step_size'"),
        ("ppo", {"gamma": 2}, "gamma must lie in"),
        ("ppo", {"minibatch": 1}, "minibatch must be a whole number"),
        ("trpo", {"max_kl": -1}, "max_kl must be a number above 0"),
    ],
)
def test_wrong_settings_are_refused(name, options, said):
    if name != "reinforce" and klimb.algorithms.BASELINES[name].missing:
        pytest.skip("needs pip install 'klimb[deep]'")
    with pytest.raises(ValueError, match=said):
        klimb.make_algorithm(name, **options)
