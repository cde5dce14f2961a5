"""Units, ranks and shapes of returns."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratics import draw_pairs, in_pairs
from scipy import stats

from klimb.surrogate.model import fit_surrogate
from klimb.surrogate.returns import (
    FAR,
    nearness,
    on_plateau,
    ranked,
    rarely_good,
    remoteness,
    scaled,
)


def test_ranks_become_normal_scores_whatever_the_values(rng):
    returns, length = rng.standard_cauchy(100), np.ones(100)
    scores, spread = ranked(returns, length)
    np.testing.assert_allclose(scores * spread, stats.norm.ppf((stats.rankdata(returns) - 0.5) / 100))
    np.testing.assert_allclose(np.std(scores), 1.0)
    np.testing.assert_array_equal(ranked(np.exp(returns / np.abs(returns).max()), length)[0], scores)


def test_equal_returns_have_equal_scores(rng):
    returns = rng.integers(0, 4, 50).astype(float)
    scores, spread = ranked(returns, np.ones(50))
    expected = stats.norm.ppf((stats.rankdata(returns) - 0.5) / 50)
    np.testing.assert_allclose(scores * spread, expected - expected.mean())


@given(st.integers(0, 2**32 - 1), st.integers(3, 400), st.floats(-300, 290), st.floats(-3, 3))
def test_good_returns_are_rare_where_their_skewness_is_two_standard_errors_above_0(seed, N, exponent, shape):
    x = np.random.default_rng(seed).standard_normal(N)
    returns = np.expm1(shape * x)
    excess = stats.skew(returns) - 2 * math.sqrt(6 / N)
    if abs(excess) > 1e-6:
        assert rarely_good(10.0**exponent * returns / np.abs(returns).max()) == (excess > 0)


def test_no_returns_that_are_all_equal_are_rare():
    assert not rarely_good(np.zeros(10))
    assert not rarely_good(np.full(10, 1e300))


def test_bowls_are_not_taken_for_landscapes_of_rare_good_returns(rng):
    for k in (1, 3, 10, 100):
        returns = -np.square(rng.standard_normal((200, 50, k))).sum(2)
        assert np.mean([rarely_good(each) for each in returns]) < 0.01


@pytest.mark.parametrize("wide", [False, True])
def test_episodes_of_a_wider_belief_do_not_hide_the_noise_of_those_at_hand(rng, wide):
    """With 120 of them a quadratic of 20 parameters is not told: the steep direction shows far out alone."""
    n, noise = 20, 1.0
    drawn = 3.0 if wide else 1.0
    z = np.vstack([100 * draw_pairs(rng, 60, n), drawn * draw_pairs(rng, 60, n)])
    steep = rng.standard_normal(n) / 100
    returns = -np.square(z @ steep) + noise * rng.standard_normal(240)
    y, spread = scaled(returns, np.einsum("ij,ij->i", z, z))
    exploration = np.full(n, drawn**2) if wide else None
    t = None
    for _ in range(10):
        fit = fit_surrogate(
            z, y, in_pairs(240), np.eye(n) / n, t, np.ones(n), None, (noise / spread) ** 2, exploration
        )
        t = fit.amplitudes
    assert 0.5 < fit.nearby * spread**2 / noise**2 < 2
    assert fit.unexplained > 3 * fit.nearby


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.floats(-250, 300))
def test_far_episodes_hardly_count_and_near_ones_do(seed, N, exponent):
    length = np.random.default_rng(seed).chisquare(1, N) * 10.0**exponent
    weights = nearness(remoteness(length))
    assert (weights[np.argsort(length)[: N // 4 + 1]] == 1).all()
    assert (np.diff(weights[np.argsort(length)]) <= 0).all()
    assert (weights >= FAR**-3 * (1 - 1e-9)).all()
    ratio = np.sort(length)[N // 4] / length
    inside = (ratio < 1) & (ratio > 1 / FAR)
    np.testing.assert_allclose(weights[inside], ratio[inside] ** 3)


def test_samples_that_rounding_has_put_on_the_mean_count_like_any_other():
    np.testing.assert_array_equal(nearness(remoteness(np.zeros(4))), 1)
    assert np.isfinite(nearness(remoteness(np.array([0.0, 0.0, 0.0, 1e-310, 1e300])))).all()


def test_units_are_those_of_near_episodes(rng):
    returns, length = rng.standard_normal(50), rng.uniform(1, 9, 50)
    y, spread = scaled(returns, length)
    near = np.minimum(1, np.sort(length)[50 // 4] / length) ** 3
    mean = np.average(returns, weights=near)
    std = math.sqrt(np.average(np.square(returns - mean), weights=near))
    np.testing.assert_allclose(spread, std)
    np.testing.assert_allclose(y, (returns - mean) / std)


def test_an_outlier_is_one_for_its_distance():
    """A crash nearby is brought back in; what a bowl has far away is as it is."""
    length = np.array([1.0] * 30 + [1e3])
    returns = np.append(np.linspace(-1, 1, 30), -1e3)
    y, spread = scaled(returns, length)
    assert (y[0] - y[-1]) * spread == pytest.approx(999)
    y, spread = scaled(returns, np.ones(31))
    low, high = np.sort(returns)[[7, 23]]
    assert (y[0] - y[-1]) * spread == pytest.approx(-1 - (low - 10 * (high - low)))


def test_a_plateau_is_where_half_of_the_returns_are_the_worst():
    assert on_plateau(np.array([-100.0, -100.0, -60.0, -59.0]))
    assert not on_plateau(np.array([-100.0, -100.0, -60.0, -59.0, -58.0]))
    assert not on_plateau(np.array([-60.0, -60.0, -100.0]))  # the best may be shared by any number
