"""The LQR: against a plain simulation, the Riccati equation and the paper's numbers."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.linalg import solve_discrete_are

from klimb.tasks.lqr import LQR

PAPER_INEFFECTIVE = [4, 6, 2, 7, 3, 5, 9]


def matrices(n, ineffective):
    """B, Q, R as the paper writes them, for the tests to be independent of the task's own."""
    B, Q, R = np.eye(n), 0.1 * np.eye(n), 0.9 * np.eye(n)
    Q[0, 0], R[0, 0] = 0.9, 0.1
    for i in ineffective:
        B[i, i] = Q[i, i] = 1e-20
    return B, Q, R


def simulate(W, x, B, Q, R, horizon=50, discount=0.9):
    total = 0.0
    for t in range(horizon):
        u = np.clip(W @ x, -1, 1)
        total -= discount**t * (x @ Q @ x + u @ R @ u)
        x = np.clip(x + B @ u, -1, 1)
    return total


def gains(count, n=10, std=0.3, seed=0):
    return np.random.default_rng(seed).normal(0, std, (count, n * n))


@pytest.mark.parametrize("std", [0.01, 0.3, 3.0])
def test_returns_agree_with_a_plain_simulation(std):
    theta = gains(20, std=std)
    expected = [
        simulate(row.reshape(10, 10), np.full(10, 0.9), *matrices(10, PAPER_INEFFECTIVE)) for row in theta
    ]
    np.testing.assert_allclose(LQR().evaluate(theta), expected, rtol=1e-12)


def test_other_settings_agree_with_a_plain_simulation():
    task = LQR(n_states=4, n_effective=2, start="random", horizon=7, discount=0.6, instance=3)
    ineffective = set(range(4)) - set(task.effective_states)
    theta, seeds = gains(10, n=4), np.arange(10)
    starts = [np.random.default_rng(seed).uniform(-1, 1, 4) for seed in seeds]
    expected = [
        simulate(row.reshape(4, 4), start, *matrices(4, ineffective), horizon=7, discount=0.6)
        for row, start in zip(theta, starts, strict=True)
    ]
    np.testing.assert_allclose(task.evaluate(theta, seeds), expected, rtol=1e-12)


def test_the_numbers_of_the_paper():
    task = LQR()
    assert (task.n_parameters, task.initial_std) == (100, 0.3)
    assert task.effective_parameters.tolist() == [0, 11, 88]
    assert task.optimum == pytest.approx(-1.3141, abs=5e-5)
    np.testing.assert_allclose(task.optimal_parameters[[0, 11, 88]], [-0.8991, -0.2403, -0.2403], atol=5e-5)
    assert np.abs(np.delete(task.optimal_parameters, [0, 11, 88])).max() < 1e-30
    assert task.evaluate(np.zeros((1, 100)))[0] == pytest.approx(-8.864, abs=5e-4)
    assert LQR(discount=1.0).evaluate(task.optimal_parameters[None])[0] == pytest.approx(-1.3849, abs=5e-5)
    assert task.evaluate(gains(20_000)).mean() == pytest.approx(-45.3, abs=0.4)


@pytest.mark.parametrize("start", ["fixed", "random"])
def test_optimum_and_gains_solve_the_riccati_equation(start):
    task = LQR(start=start)
    B, Q, R = matrices(10, PAPER_INEFFECTIVE)
    keep = np.ix_([0, 1, 8], [0, 1, 8])  # with entries of 1e-20 the solver gives up
    B, Q, R, A = np.sqrt(0.9) * B[keep], Q[keep], R[keep], np.sqrt(0.9) * np.eye(3)
    P = solve_discrete_are(A, B, Q, R)
    second_moment = 0.81 if start == "fixed" else 1 / 3
    assert task.optimum == pytest.approx(-second_moment * np.trace(P), rel=1e-12)
    gain = -np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A)
    np.testing.assert_allclose(task.optimal_parameters.reshape(10, 10)[keep], gain, atol=1e-12)


def test_optimal_gains_reach_the_optimum():
    task = LQR()
    assert task.evaluate(task.optimal_parameters[None])[0] == pytest.approx(task.optimum, rel=1e-13)


def test_random_starts_average_to_the_optimum():
    task = LQR(start="random")
    returns = task.evaluate(np.tile(task.optimal_parameters, (4000, 1)), seed=1)
    assert len(np.unique(returns)) == 4000
    assert abs(returns.mean() - task.optimum) < 4 * returns.std() / np.sqrt(4000)


@settings(max_examples=60, deadline=None)
@given(
    gain=hnp.arrays(float, 9, elements=st.floats(-3, 3)),
    horizon=st.integers(1, 12),
    discount=st.floats(0.1, 1.0),
    instance=st.integers(0, 5),
)
def test_no_gains_beat_the_optimum_even_with_clipping_and_short_episodes(gain, horizon, discount, instance):
    task = LQR(n_states=3, n_effective=2, horizon=horizon, discount=discount, instance=instance)
    theta = np.stack([gain, task.optimal_parameters, task.optimal_parameters + 0.1 * gain])
    assert task.evaluate(theta).max() <= task.optimum + 1e-12


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(float, (3, 9), elements=st.floats(-1e150, 1e150)))
def test_finite_gains_give_finite_returns(theta):
    returns = LQR(n_states=3, n_effective=2).evaluate(theta)
    assert np.isfinite(returns).all()
    assert (returns <= 0).all()


@pytest.mark.parametrize("start", ["fixed", "random"])
def test_a_return_has_the_same_bits_in_every_batch(start):
    task, theta, seeds = LQR(start=start), gains(23), np.random.default_rng(1).integers(0, 2**63, 23)
    together = task.evaluate(theta, seeds)
    order = np.random.default_rng(2).permutation(23)
    assert np.array_equal(task.evaluate(theta[order], seeds[order]), together[order])
    for size in (1, 2, 7):
        parts = [task.evaluate(theta[i : i + size], seeds[i : i + size]) for i in range(0, 23, size)]
        assert np.array_equal(np.concatenate(parts), together)
    assert np.array_equal(task.evaluate(np.asfortranarray(theta), seeds), together)
    assert np.array_equal(task.evaluate(np.repeat(theta, 2, axis=0)[::2], seeds), together)
    assert np.array_equal(pickle.loads(pickle.dumps(task)).evaluate(theta, seeds), together)


def test_a_single_seed_is_spread_over_the_batch():
    task, theta = LQR(start="random"), gains(6)
    returns = task.evaluate(theta, seed=5)
    assert np.array_equal(task.evaluate(theta[:4], seed=5), returns[:4])
    assert not np.isin(task.evaluate(theta, seed=6), returns).any()
    assert len(np.unique(task.evaluate(theta[[0, 0, 0]], seed=5))) == 3


def test_theta_is_not_modified_and_may_be_read_only():
    theta = gains(3)
    before = theta.copy()
    theta.flags.writeable = False
    LQR().evaluate(theta)
    assert np.array_equal(theta, before)
    assert LQR().evaluate(np.empty((0, 100))).shape == (0,)


def test_instances_differ_in_the_effective_dimensions_only():
    drawn = {tuple(LQR(20, 4, instance=i).effective_states) for i in range(20)}
    assert len(drawn) > 15
    assert all(len(set(states)) == 4 and max(states) < 20 for states in drawn)
    assert LQR(20, 4, instance=7) == LQR(20, 4, instance=7)
    assert LQR(10, 10).effective_states.tolist() == list(range(10))


def test_a_gain_that_matters_changes_the_return_and_the_state_it_steers():
    task = LQR(6, 2, instance=1)
    base = task.evaluate(np.zeros((1, 36)))[0]
    nudged = task.evaluate(-0.1 * np.eye(36))  # row i: parameter i alone
    better = np.flatnonzero(nudged > base)
    assert set(task.effective_parameters) <= set(better)
    rows = {int(i) // 6 for i in better}
    assert rows == set(task.effective_states.tolist())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_states": 0}, "n_states must be a whole number of at least 1, but 0 came"),
        ({"n_effective": 11}, "n_effective must be a whole number from 1 to 10, but 11 came"),
        ({"start": "anywhere"}, "start must be one of 'fixed', 'random', but 'anywhere' came"),
        ({"horizon": 2.5}, "horizon must be a whole number of at least 1, but 2.5 came"),
        ({"discount": 0}, "discount must lie in"),
        ({"instance": -1}, "instance must be a whole number of at least 0, but -1 came"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LQR(**options)


def test_bad_parameters_are_refused():
    with pytest.raises(ValueError, match=r"shape \(N, 100\), but its shape is \(100,\)"):
        LQR().evaluate(np.zeros(100))
    theta = np.zeros((2, 100))
    theta[1, 3] = np.nan
    with pytest.raises(ValueError, match=r"theta\[1, 3\] is nan"):
        LQR().evaluate(theta)
    with pytest.raises(ValueError, match="seed must be one number or 2 of them"):
        LQR().evaluate(np.zeros((2, 100)), seed=[1, 2, 3])


def test_numba_is_loaded_with_the_first_episode_only():
    code = "import sys, klimb.tasks; klimb.tasks.make_task('lqr').optimum; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
