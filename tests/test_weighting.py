"""Weights against the dual they solve, and their invariances."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

from klimb.weighting import elite_weights, entropic_weights, rank_utilities, reward_weights, standardise

returns_of = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=2, max_size=40).map(np.array)


@given(st.integers(0, 10**6), st.integers(5, 100), st.floats(0.05, 1.0))
def test_the_temperature_minimises_the_dual_of_reps(seed, N, epsilon):
    J = np.random.default_rng(seed).standard_normal(N)
    d, temperature = entropic_weights(J, epsilon)
    gap = J - J.max()

    def dual(log_eta):
        eta = np.exp(log_eta)
        return eta * epsilon + eta * (logsumexp(gap / eta) - np.log(N))

    best = minimize_scalar(dual, bounds=(-8, 8), method="bounded", options={"xatol": 1e-12})
    assert np.log(temperature) == pytest.approx(best.x, abs=1e-5)
    expected = np.exp(gap / temperature)
    np.testing.assert_allclose(d, expected / expected.sum(), atol=1e-10)


@given(returns_of, st.floats(1e-6, 10))
def test_reps_weights_use_the_bound_exactly_or_are_one_hot(J, epsilon):
    assume(np.ptp(J) > 0)
    d, temperature = entropic_weights(J, epsilon)
    assert d.sum() == pytest.approx(1)
    assert (d >= 0).all()
    positive = d[d > 0]
    divergence = np.log(J.size) + positive @ np.log(positive)
    best = J.max() == J
    if temperature > 0:
        assert divergence == pytest.approx(epsilon, abs=1e-9)
    else:
        np.testing.assert_array_equal(d, best / best.sum())
        assert divergence <= epsilon + 1e-9


@pytest.mark.parametrize("N", [2, 15, 50])
def test_an_epsilon_of_log_n_or_more_puts_all_weight_on_the_best(rng, N):
    J = rng.standard_normal(N)
    d, temperature = entropic_weights(J, np.log(N) + 1e-12)
    assert temperature == 0
    np.testing.assert_array_equal(d, J.max() == J)
    almost, warm = entropic_weights(J, np.log(N) - 1e-3)
    assert warm > 0
    assert 0.9 < almost.max() < 1


@given(st.integers(0, 10**6), st.floats(-12, 12), st.floats(-100, 100))
def test_reps_weights_ignore_shift_and_scale_of_the_returns(seed, exponent, shift):
    J = np.random.default_rng(seed).standard_normal(20)
    d, temperature = entropic_weights(J, 0.7)
    np.testing.assert_allclose(entropic_weights(J + shift, 0.7)[0], d, atol=1e-9)
    scaled, hotter = entropic_weights(J * 10.0**exponent, 0.7)
    np.testing.assert_allclose(scaled, d, atol=1e-9)
    assert hotter == pytest.approx(temperature * 10.0**exponent, rel=1e-9)


def test_returns_at_the_limits_of_floats_are_weighted_without_overflow():
    J = np.array([-1.7e308, 0.0, 1.7e308])
    assert entropic_weights(J, 0.5)[0].sum() == pytest.approx(1)
    assert np.isfinite(standardise(J)).all()
    assert entropic_weights(J * 1e-300 * 1e-300, 0.5)[0].sum() == pytest.approx(1)


@given(returns_of, st.floats(0.01, 5), st.floats(-50, 50))
def test_rwr_weights_are_exponential_and_ignore_a_shift(J, beta, shift):
    d = reward_weights(J, beta)
    np.testing.assert_allclose(np.log(d[d > 1e-200] / d.max()), beta * (J - J.max())[d > 1e-200], atol=1e-9)
    np.testing.assert_allclose(reward_weights(J + shift, beta), d, rtol=1e-6, atol=1e-12)


@given(returns_of)
def test_elites_are_the_best_and_equals_share(J):
    k = max(1, J.size // 2)
    d = elite_weights(J, k)
    assert d.sum() == pytest.approx(1)
    assert J[d > 0].min() >= J[d == 0].max(initial=-np.inf)
    np.testing.assert_allclose(d[np.sort(J)[-k] < J], 1 / k)
    np.testing.assert_allclose(elite_weights(J[::-1], k), d[::-1])
    assert elite_weights(np.array([3.0, 1.0, 1.0, 0.0]), 2).tolist() == [0.5, 0.25, 0.25, 0.0]


def test_rank_utilities_follow_the_published_formula(rng):
    J = rng.permutation(10).astype(float)
    raw = np.array([max(0.0, np.log(10 / 2 + 1) - np.log(10 - int(j))) for j in J])
    np.testing.assert_allclose(rank_utilities(J), raw / raw.sum() - 0.1, atol=1e-12)


@given(returns_of)
def test_rank_utilities_sum_to_zero_and_treat_equals_alike(J):
    u = rank_utilities(J)
    assert u.sum() == pytest.approx(0, abs=1e-12)
    for a in range(J.size):
        for b in range(a):
            if J[a] == J[b]:
                assert u[a] == u[b]
            elif J[a] > J[b]:
                assert u[a] >= u[b] - 1e-15


@given(returns_of, st.floats(-12, 12))
def test_standardised_returns_have_mean_zero_and_unit_deviation(J, exponent):
    assume(np.ptp(J) > 1e-6)
    z = standardise(J * 10.0**exponent)
    assert z.mean() == pytest.approx(0, abs=1e-6)
    assert np.mean(z**2) == pytest.approx(1)
