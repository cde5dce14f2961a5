"""klimb's tasks as Gymnasium environments: the checker's verdict, and the same returns as the tasks'."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from klimb.policies import Linear
from klimb.tasks import environments, make_task
from klimb.tasks.gymnasium import gymnasium_task
from klimb.tasks.task import episode_seeds

FUNCTIONS = ["Sphere", "Rosenbrock", "Rastrigin", "StyblinskiTang", "Himmelblau"]


def names(name):
    """Of the environment and of the task."""
    task = {"LQR": "lqr", "StyblinskiTang": "styblinski-tang", "ShipSteering": "ship-steering"}
    task |= {"AirHockey": "air-hockey", "BallStopping": "ball-stopping"}
    return f"klimb/{name}-v0", task.get(name, name.lower())


def run(env, act, seed, discount):
    """Discounted sum of the rewards of act(observation, step), and the last info."""
    observation, _ = env.reset(seed=int(seed))
    total, step, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(act(observation, step))
        total += discount**step * reward
        over, step = terminated or truncated, step + 1
    return total, info


# Registration


@pytest.mark.parametrize("name", environments.ENVIRONMENTS)
def test_gymnasium_has_nothing_to_complain_about(name):
    check_env(gymnasium.make(name).unwrapped)


def test_importing_klimb_registers_and_loads_no_simulator():
    code = (
        "import sys, gymnasium\n"
        "gymnasium.make('klimb:klimb/LQR-v0').reset(seed=0)\n"
        "assert gymnasium.spec('klimb/AirHockey-v0').max_episode_steps == 120\n"
        "assert not {'numba', 'mujoco'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], check=True)


def test_registering_twice_is_silent():
    environments.register()


def test_time_limits_are_those_of_the_tasks():
    from klimb.tasks import air_hockey, ball_stopping

    limits = {name: spec.max_episode_steps for name, spec in gymnasium.registry.items() if "klimb/" in name}
    assert limits["klimb/LQR-v0"] == make_task("lqr").horizon
    assert limits["klimb/ShipSteering-v0"] == make_task("ship-steering").horizon
    assert limits["klimb/AirHockey-v0"] == air_hockey.HORIZON
    assert limits["klimb/BallStopping-v0"] == ball_stopping.HORIZON


# The same returns as the tasks'


@pytest.mark.parametrize("start", ["fixed", "random"])
def test_lqr(start):
    task = make_task("lqr", start=start)
    env = gymnasium.make("klimb/LQR-v0", start=start)
    theta, seeds = np.random.default_rng(0).normal(0, 0.3, (5, 100)), episode_seeds(2, 5)
    for row, seed, expected in zip(theta, seeds, task.evaluate(theta, seeds), strict=True):
        total, _ = run(env, lambda x, _, row=row: row.reshape(10, 10) @ x, seed, task.discount)
        assert total == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("start", ["fixed", "random"])
def test_ship_steering(start):
    task = make_task("ship-steering", start=start)
    env = gymnasium.make("klimb/ShipSteering-v0", start=start)
    theta, seeds = np.random.default_rng(1).normal(0, 0.07, (30, 450)), episode_seeds(4, 30)
    returns, success = task.evaluate(theta, seeds, return_success=True)
    for row, seed, expected, won in zip(theta, seeds, returns, success, strict=True):
        total, info = run(
            env, lambda x, _, row=row: task.policy.act(row[None], x[None])[0], seed, task.discount
        )
        assert total == pytest.approx(expected, rel=1e-11)
        assert info["is_success"] == won
    assert success.any() or start == "fixed"  # where hardly any random policy gets through


@pytest.mark.parametrize("variant", [{}, {"puck": "random"}, {"puck": "still"}])
def test_air_hockey(variant):
    task = make_task("air-hockey", **variant)
    env = gymnasium.make("klimb/AirHockey-v0", **variant)
    theta, seeds = np.random.default_rng(0).normal(0, 3.0, (6, 90)), episode_seeds(0, 6)
    movements = task.policy.trajectory(theta)
    assert np.abs(movements).max() > environments.ROBOT_SCALE  # beyond the space as well
    returns, success = task.evaluate(theta, seeds, return_success=True)
    for movement, seed, expected, won in zip(movements, seeds, returns, success, strict=True):
        total, info = run(env, lambda _, step, m=movement: m[step] / environments.ROBOT_SCALE, seed, 0.99)
        assert total == pytest.approx(expected, rel=1e-12)
        assert info["is_success"] == won


@pytest.mark.parametrize("variant", [{}, {"ball": "random"}])
def test_ball_stopping(variant):
    task = make_task("ball-stopping", **variant)
    env = gymnasium.make("klimb/BallStopping-v0", **variant)
    theta, seeds = np.random.default_rng(0).normal(0, 1.0, (4, 140)), episode_seeds(0, 4)
    movements = task.policy.trajectory(theta)
    returns, success = task.evaluate(theta, seeds, return_success=True)
    for movement, seed, expected, won in zip(movements, seeds, returns, success, strict=True):
        total, info = run(env, lambda _, step, m=movement: m[step] / environments.ROBOT_SCALE, seed, 0.99)
        assert total == pytest.approx(expected, rel=1e-12)
        assert info["is_success"] == won


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_episodes_of_one_step(name):
    environment, task_name = names(name)
    options = {"n_parameters": 6, "noise": 0.5, "n_effective": 4}
    task, env = make_task(task_name, **options), gymnasium.make(environment, **options)
    theta, seeds = np.random.default_rng(0).normal(0, task.initial_std, (4, 6)), episode_seeds(0, 4)
    for row, seed, expected in zip(theta, seeds, task.evaluate(theta, seeds), strict=True):
        observation, _ = env.reset(seed=int(seed))
        assert observation == [0.0]
        _, reward, terminated, _, _ = env.step(row / environments.FUNCTION_SCALE)
        assert terminated
        assert reward == expected
    assert np.abs(task.optimal_parameters).max() < environments.FUNCTION_SCALE


def test_the_way_round_through_a_gymnasium_task():
    ship = make_task("ship-steering")
    task = gymnasium_task("klimb/ShipSteering-v0", policy=ship.policy, discount=0.99)
    theta = np.random.default_rng(0).normal(0, 0.07, (10, 450))
    for given, expected in zip(
        task.evaluate(theta, return_success=True), ship.evaluate(theta, return_success=True), strict=True
    ):
        np.testing.assert_allclose(given, expected, rtol=1e-11)
    lqr = gymnasium_task("klimb/LQR-v0", policy=Linear(10, 10), discount=0.9)
    gains = np.random.default_rng(0).normal(0, 0.3, (10, 100))
    np.testing.assert_allclose(lqr.evaluate(gains), make_task("lqr").evaluate(gains), rtol=1e-12)


# Behaviour


@pytest.mark.parametrize("name", ["LQR", "ShipSteering", "AirHockey", "BallStopping"])
def test_observations_stay_within_their_space(name):
    env = gymnasium.make(names(name)[0], max_episode_steps=400).unwrapped
    env.action_space.seed(0)
    for episode in range(4):
        env.reset(seed=episode)
        held = np.sign(env.action_space.sample()) * env.action_space.high
        for _ in range(300):
            # the worst for the joints: full effort in one direction
            observation, _, terminated, _, _ = env.step(held)
            assert observation in env.observation_space
            if terminated:
                break


@pytest.mark.parametrize("name", ["ShipSteering", "LQR"])
def test_episodes_without_a_seed_follow_from_the_last_one(name):
    env = gymnasium.make(names(name)[0], start="random")
    first = [env.reset(seed=3)[0], env.reset()[0], env.reset()[0]]
    again = [env.reset(seed=3)[0], env.reset()[0], env.reset()[0]]
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[1], first[2])


@pytest.mark.parametrize("name", ["LQR", "ShipSteering", "AirHockey", "BallStopping", "Sphere"])
def test_an_action_of_the_wrong_shape_is_refused(name):
    env = gymnasium.make(names(name)[0], disable_env_checker=True)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"action must have shape \(\d+,\), but its shape is \(2, 2\)"):
        env.step(np.zeros((2, 2)))


def test_a_broken_simulation_ends_the_episode_with_nan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file
    for env in (environments.AirHockeyEnvironment(), environments.BallStoppingEnvironment()):
        env.reset(seed=0)
        simulation = getattr(env, "_game", None) or env._episode
        simulation.simulation.data.qvel[:] = 1e12
        _, reward, terminated, _, info = env.step(np.zeros(env.action_space.shape))
        assert np.isnan(reward)
        assert terminated
        assert info["is_success"] is False
        assert env.reset(seed=0)[0] in env.observation_space
