"""The list of tasks, and the test functions with their embedding, rotation and noise."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import rosen

from klimb.tasks import TASKS, Task, TaskEntry, episode_seeds, make_task
from klimb.tasks.functions import (
    FUNCTIONS,
    Function,
    ackley,
    ellipsoid,
    himmelblau,
    random_frame,
    rastrigin,
    rosenbrock,
    sphere,
    styblinski_tang,
)

ALL = sorted(FUNCTIONS)


def points(*shape, seed=0, std=2.0):
    return np.random.default_rng(seed).normal(0, std, shape)


# The list


@pytest.mark.parametrize("name", TASKS)
def test_every_task_keeps_the_protocol(name):
    task: Task = make_task(name)
    assert isinstance(task.n_parameters, int)
    assert task.n_parameters > 0
    assert task.optimum is None or isinstance(task.optimum, float)
    assert isinstance(task.initial_std, float)
    assert task.initial_std > 0
    theta = points(7, task.n_parameters, std=task.initial_std)
    before = theta.copy()
    returns = task.evaluate(theta, seed=3)
    assert returns.shape == (7,)
    assert returns.dtype == np.float64
    assert np.array_equal(theta, before)
    assert np.array_equal(task.evaluate(theta, seed=episode_seeds(3, 7)), returns)
    assert np.array_equal(pickle.loads(pickle.dumps(task)).evaluate(theta, seed=3), returns)
    assert task.evaluate(theta[:0], seed=3).shape == (0,)
    with pytest.raises(ValueError, match=r"shape \(N, "):
        task.evaluate(theta[0])
    assert "\n" not in TASKS[name].description


def test_options_reach_the_task():
    assert make_task("lqr", n_states=4, n_effective=1).n_parameters == 16
    assert make_task("rastrigin", n_parameters=3) == Function("rastrigin", 3)
    assert TASKS["sphere"].options()["n_parameters"] == 10


def test_unknown_names_and_options_come_with_the_nearest():
    with pytest.raises(ValueError, match=r"unknown task 'lqrr': did you mean 'lqr'\? There are: .*sphere"):
        make_task("lqrr")
    with pytest.raises(
        ValueError,
        match=r"unknown option 'n_stats' of task 'lqr': did you mean 'n_states'\? There are: discount, ",
    ):
        make_task("lqr", n_stats=3)
    with pytest.raises(ValueError, match="unknown option 'function' of task 'sphere'"):
        make_task("sphere", function="rastrigin")
    with pytest.raises(ValueError, match="horizon must be a whole number"):
        make_task("lqr", horizon=-1)


def test_a_task_of_ones_own_can_be_listed(monkeypatch):
    monkeypatch.setitem(TASKS, "mine", TaskEntry("an example", lambda size=2: Function("sphere", size)))
    assert make_task("mine", size=5).n_parameters == 5
    with pytest.raises(ValueError, match=r"unknown option 'sizes' of task 'mine': did you mean 'size'"):
        make_task("mine", sizes=5)


# The functions


def test_functions_agree_with_their_formulas():
    x = points(30, 6)
    np.testing.assert_allclose(sphere(x), [sum(v**2 for v in row) for row in x], rtol=1e-13)
    np.testing.assert_allclose(rosenbrock(x), rosen(x.T), rtol=1e-13)
    by_hand = [sum(10 ** (6 * i / 5) * v**2 for i, v in enumerate(row)) for row in x]
    np.testing.assert_allclose(ellipsoid(x), by_hand, rtol=1e-13)
    np.testing.assert_allclose(ellipsoid(x[:, :1]), sphere(x[:, :1]))
    cosines, squares = np.cos(2 * np.pi * x).mean(1), np.square(x).mean(1)
    by_hand = 20 + np.e - 20 * np.exp(-0.2 * np.sqrt(squares)) - np.exp(cosines)
    np.testing.assert_allclose(ackley(x), by_hand, rtol=1e-12)
    by_hand = [60 + sum(v**2 - 10 * np.cos(2 * np.pi * v) for v in row) for row in x]
    np.testing.assert_allclose(rastrigin(x), by_hand, rtol=1e-12)
    by_hand = [sum(v**4 - 16 * v**2 + 5 * v for v in row) / 2 for row in x]
    np.testing.assert_allclose(styblinski_tang(x), by_hand, rtol=1e-11)
    by_hand = [sum((a**2 + b - 11) ** 2 + (a + b**2 - 7) ** 2 for a, b in row.reshape(3, 2)) for row in x]
    np.testing.assert_allclose(himmelblau(x), by_hand, rtol=1e-13)


def test_himmelblau_has_four_minima():
    minima = [[3, 2], [-2.805118, 3.131312], [-3.779310, -3.283186], [3.584428, -1.848126]]
    np.testing.assert_allclose(himmelblau(minima), 0, atol=1e-9)


def test_styblinski_tang_is_stationary_at_its_minimizer():
    (x,) = FUNCTIONS["styblinski-tang"].minimizer
    assert 4 * x**3 - 32 * x + 5 == pytest.approx(0, abs=1e-13)
    assert Function("styblinski-tang", 3).optimum == pytest.approx(3 * 39.16616570377142, rel=1e-15)


# The task


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_optimum_is_attained_and_not_beaten_and_not_at_the_start(name, rotated):
    task = Function(name, 12, n_effective=4, rotated=rotated, instance=5)
    best = task.optimal_parameters
    scale = max(1.0, abs(task.optimum))
    assert task.evaluate(best[None])[0] == pytest.approx(task.optimum, abs=1e-13 * scale)
    theta = np.concatenate([best + points(200, 12, std=std) for std in (1e-3, 0.1, 2.0)])
    assert (task.evaluate(theta) <= task.optimum + 1e-13 * scale).all()
    assert task.evaluate(np.zeros((1, 12)))[0] < task.optimum - 0.5
    distance = np.linalg.norm(best) / np.sqrt(4) / task.initial_std
    assert 0.4 < distance < 2.1  # in reach of the initial search distribution


@pytest.mark.parametrize("name", ALL)
def test_the_whole_function_is_the_plain_one_up_to_its_shift(name):
    task, theta = Function(name, 6), points(9, 6)
    shift = task.optimal_parameters - np.resize(FUNCTIONS[name].minimizer, 6)
    assert task.effective_parameters.tolist() == list(range(6))
    np.testing.assert_allclose(task.evaluate(theta), -FUNCTIONS[name].values(theta - shift), rtol=1e-12)
    if name in ("sphere", "ellipsoid", "rastrigin", "ackley"):
        assert (np.abs(shift) >= 0.5 * task.initial_std).all()
        assert (np.abs(shift) <= 1.5 * task.initial_std).all()
        assert not np.array_equal(shift, Function(name, 6, instance=1).optimal_parameters)
    else:
        assert not shift.any()


@pytest.mark.parametrize("name", ALL)
def test_only_the_effective_coordinates_count(name):
    task, theta = Function(name, 50, n_effective=4, instance=2), points(8, 50)
    effective = task.effective_parameters
    assert len(set(effective.tolist())) == 4
    changed = points(8, 50, seed=1)
    changed[:, effective] = theta[:, effective]
    assert np.array_equal(task.evaluate(changed), task.evaluate(theta))
    for i in effective:
        other = theta.copy()
        other[:, i] += 0.3
        assert (task.evaluate(other) != task.evaluate(theta)).all()
    assert not np.array_equal(effective, Function(name, 50, 4, instance=3).effective_parameters)


@pytest.mark.parametrize("name", ALL)
def test_rotated_is_the_plain_function_of_explicitly_rotated_parameters(name):
    task, plain, theta = Function(name, 9, 4, rotated=True), Function(name, 4), points(8, 9)
    frame = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 9)).T)
    directions = (frame.Q * np.sign(np.diag(frame.R))).T
    np.testing.assert_allclose(task.evaluate(theta), plain.evaluate(theta @ directions.T), rtol=1e-9)
    assert task.effective_parameters is None
    np.testing.assert_allclose(task.optimal_parameters, plain.optimal_parameters @ directions, atol=1e-12)


@pytest.mark.parametrize(("count", "n"), [(1, 1), (1, 8), (5, 5), (60, 60), (10, 3000)])
def test_frames_are_orthonormal_to_the_last_digits(count, n):
    frame = random_frame(np.random.default_rng(0), count, n)
    np.testing.assert_allclose(frame @ frame.T, np.eye(count), atol=1e-14)


def test_frames_prefer_no_direction():
    rng = np.random.default_rng(0)
    frames = np.array([random_frame(rng, 2, 2) for _ in range(4000)])
    angle = np.arctan2(frames[:, 0, 1], frames[:, 0, 0])
    assert np.abs(np.histogram(angle, 8, (-np.pi, np.pi))[0] - 500).max() < 100  # 5 standard deviations
    assert abs((np.linalg.det(frames) > 0).mean() - 0.5) < 0.04


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(ALL),
    k=st.integers(1, 20).map(lambda half: 2 * half),
    extra=st.integers(0, 20),
    rotated=st.booleans(),
    noise=st.sampled_from([0.0, 0.5]),
    std=st.sampled_from([1.0, 1e3, 1e9]),
    seed=st.integers(0, 2**32),
)
def test_a_return_has_the_same_bits_in_every_batch(name, k, extra, rotated, noise, std, seed):
    task = Function(name, k + extra, k, rotated=rotated, noise=noise)
    rng = np.random.default_rng(seed)
    theta, seeds = rng.normal(0, std, (13, k + extra)), rng.integers(0, 2**63, 13)
    theta[::3] /= std  # near and far points side by side
    together = task.evaluate(theta, seeds)
    order = rng.permutation(13)
    assert np.array_equal(task.evaluate(theta[order], seeds[order]), together[order])
    for size in (1, 2, 5):
        parts = [task.evaluate(theta[i : i + size], seeds[i : i + size]) for i in range(0, 13, size)]
        assert np.array_equal(np.concatenate(parts), together)
    assert np.array_equal(task.evaluate(np.asfortranarray(theta), seeds), together)
    assert np.array_equal(task.evaluate(theta[::-1], seeds[::-1]), together[::-1])


def test_noise_has_its_standard_deviation_and_follows_the_seed():
    task, quiet = Function("sphere", 3, noise=0.7), Function("sphere", 3)
    theta = np.tile(points(1, 3), (4000, 1))
    noise = task.evaluate(theta, seed=1) - quiet.evaluate(theta, seed=1)
    assert abs(noise.mean()) < 4 * 0.7 / np.sqrt(4000)
    assert noise.std() == pytest.approx(0.7, rel=0.05)
    assert np.array_equal(task.evaluate(theta, seed=1), task.evaluate(theta, seed=1))
    assert not np.array_equal(task.evaluate(theta, seed=2), task.evaluate(theta, seed=1))
    assert np.array_equal(quiet.evaluate(theta, seed=2), quiet.evaluate(theta, seed=1))


def test_a_million_parameters_are_no_burden():
    task = Function("sphere", 1_000_000, n_effective=5)
    theta = np.zeros((2, 1_000_000))
    theta[1] = task.optimal_parameters
    assert task.evaluate(theta)[1] == 0
    task = Function("rosenbrock", 1_000_000, n_effective=2, rotated=True)
    theta[1] = task.optimal_parameters
    assert task.evaluate(theta)[1] == pytest.approx(0, abs=1e-20)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_far_away_returns_are_very_bad_but_never_nan(name, rotated):
    theta = 1e150 * np.array([[1, 1, 1, 1], [-1, -1, -1, -1], [1, -1, 1, -1]])
    worst = -19.99 if name == "ackley" else -1e290  # Ackley's function is bounded
    assert (Function(name, 4, rotated=rotated).evaluate(theta) < worst).all()


def test_settings_are_frozen_and_compare():
    task = Function("sphere", np.int64(4), noise=1)
    assert task == Function("sphere", 4, noise=1.0)
    assert type(task.n_parameters) is int
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.noise = 2.0
    with pytest.raises(ValueError, match="read-only"):
        task.optimal_parameters[0] = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"function": "spere"}, r"unknown function 'spere': did you mean 'sphere'\?"),
        ({"n_parameters": 0}, "n_parameters must be a whole number of at least 1, but 0 came"),
        ({"n_effective": 11}, "n_effective must be a whole number from 1 to 10, but 11 came"),
        (
            {"function": "himmelblau", "n_effective": 3},
            "himmelblau needs an even number of coordinates, but 3 came: change n_effective",
        ),
        (
            {"function": "rosenbrock", "n_parameters": 1},
            "rosenbrock needs at least 2 coordinates, but 1 came: change n_parameters",
        ),
        ({"rotated": "yes"}, "rotated must be True or False, but 'yes' came"),
        ({"rotated": True, "n_parameters": 10**5}, "set n_effective to at most 2684"),
        ({"noise": -1.0}, "noise must be a finite number of at least 0, but -1.0 came"),
        ({"noise": "loud"}, "noise must be a finite number of at least 0, but 'loud' came"),
        ({"instance": 0.5}, "instance must be a whole number of at least 0, but 0.5 came"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Function(**options)
