"""How far an update goes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratics import draw_pairs
from scipy import optimize

from klimb.surrogate.model import FEWEST_KEPT, Fit
from klimb.surrogate.step import (
    bounded_step,
    climb,
    closing,
    filtered,
    gather,
    keeps_going,
    odds,
    pace,
    towards_better,
)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 5, 8, 9, 30, 200]),
    st.integers(1, 40),
    st.sampled_from([-300, 0, 300]),
)
def test_towards_the_better_ones_is_their_average_by_ranks(seed, n_new, n, exponent):
    rng = np.random.default_rng(seed)
    z, order = draw_pairs(rng, 150, n), rng.permutation(300)
    step = towards_better(z, 10.0**exponent * (order - 150.0), n_new)
    count = max(n_new, 8)
    best = z[-count:][np.argsort(-order[-count:])]
    weights = [max(0.0, math.log(count / 2 + 1) - math.log(rank)) for rank in range(1, count + 1)]
    average = np.average(best, axis=0, weights=weights) - best.mean(axis=0)
    average *= min(1.0, math.sqrt(n) / float(np.linalg.norm(average)))
    np.testing.assert_allclose(step, average * min(1.0, n_new / 8), rtol=1e-9, atol=1e-12)


def test_nothing_is_better_among_equals_and_nothing_leads_further_than_samples_lie(rng):
    z = draw_pairs(rng, 10, 5)
    np.testing.assert_allclose(towards_better(z, np.zeros(20), 20), 0, atol=1e-12)
    step = towards_better(1e6 * z, np.arange(20.0), 20)
    assert np.linalg.norm(step) == pytest.approx(math.sqrt(5))


@given(
    st.floats(0, 0.999),
    st.floats(0, 1),
    st.one_of(st.just(100), st.integers(2, 1000)),
    st.sampled_from([1.0, 2.0, 1e6]),
)
def test_skill_counts_as_episodes_come_in_and_before_what_is_explained_here(skill, unexplained, n_kept, wide):
    fit = Fit(*(np.empty(0) for _ in range(3)), skill, 1.0, max(unexplained, 1e-300), 0.0)
    chances = odds(fit, n_kept, wide)
    here = min(skill, 1 - unexplained)
    assert here / (1 - here) * (1 - 1e-9) <= chances <= skill / (1 - skill) * (1 + 1e-9)
    if n_kept >= FEWEST_KEPT and wide == 1:
        assert chances == skill / (1 - skill)
    # half of the episodes, or samples that see twice as much as the belief
    if (n_kept == FEWEST_KEPT // 2 and wide == 1) or (n_kept >= FEWEST_KEPT and wide == 2):
        assert chances == pytest.approx(math.sqrt(skill / (1 - skill) * here / (1 - here)))
    if wide == 1e6 and here > 0:
        assert chances == pytest.approx(here / (1 - here), rel=1e-3)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.floats(0, 1))
def test_directions_without_curvature_wait_as_far_as_the_surrogate_is_right(seed, n, skill):
    h = np.random.default_rng(seed).standard_normal(n) * 10.0 ** np.arange(n)
    part = closing(h, skill)
    assert (part >= 1 - skill - 1e-12).all()
    assert (part <= 1).all()
    assert part[np.argmax(np.abs(h))] == 1
    assert (np.diff(part[np.argsort(np.abs(h))]) >= 0).all()
    np.testing.assert_array_equal(closing(np.full(n, -0.3), skill), 1)  # a sphere
    np.testing.assert_array_equal(closing(np.zeros(n), skill), 1)
    assert closing(np.array([0.0, -1.0]), skill)[0] == pytest.approx(1 - skill)


@given(st.integers(0, 10**6), st.floats(1e-3, 50), st.floats(0, 50), st.floats(0.25, 3))
def test_the_belief_opens_along_a_way_that_is_gone_twice(seed, before, now, far):
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    ahead, factor = keeps_going(before * axes[0], now * axes[0] + rng.standard_normal() * axes[1], far)
    assert factor == pytest.approx(min(max(1.0, min(before, now) / 2), 2 ** (far / 2)))
    np.testing.assert_allclose(ahead, axes[0], atol=1e-12)
    assert keeps_going(before * axes[0], -now * axes[0], far)[1] == 1.0
    assert keeps_going(np.zeros(5), now * axes[0], far)[1] == 1.0


@given(st.integers(2, 40), st.floats(-3, 3), st.floats(0.01, 100), st.floats(1, 20))
def test_in_noise_the_mean_goes_as_far_as_bayes_would(n_new, h, noise, wide):
    # x ~ N(0, 1) is looked at n_new times through wide h x + noise: x given these looks, by their covariance
    looks = np.full(n_new, wide * h)
    covariance = np.outer(looks, looks) + noise * np.eye(n_new)
    expected = looks @ np.linalg.solve(covariance, looks * 1.7) / 1.7
    told_by = np.array([n_new * wide**2])
    share = filtered(np.ones(1), np.zeros(1), np.array([h]), noise, told_by, 0.0)
    np.testing.assert_allclose(share, expected, atol=1e-9)


@given(
    st.integers(0, 10**6),
    st.integers(1, 40),
    st.integers(0, 1000),
    st.sampled_from([1.0, 1e100]),
    st.floats(-320, 300),
)
def test_the_mean_goes_at_least_the_share_of_new_episodes_and_at_most_all_the_way(
    seed, n_new, older, size, log_noise
):
    rng = np.random.default_rng(seed)
    d, g, h = rng.standard_normal((3, 5))
    g, h = size * g, size * h
    told_by, least, noise = n_new * rng.uniform(1, 9, 5), n_new / (n_new + older), 10.0**log_noise
    gone = filtered(d, g, h, noise, told_by, least)
    assert least * (1 - 1e-9) <= gone @ d / (d @ d) <= 1 + 1e-9
    np.testing.assert_array_equal(filtered(d, g, h, 0.0, told_by, least), d)


@given(st.integers(0, 10**6), st.floats(0.01, 10))
def test_what_new_episodes_justify_does_not_hang_on_the_axes(seed, noise):
    rng = np.random.default_rng(seed)
    d, g, h = rng.standard_normal((3, 5))
    told = np.diag(np.sqrt(rng.uniform(1, 9, 5) / noise))
    M = told @ (np.diag(h**2) + np.outer(g, g)) @ told
    expected = d - 0.8 * np.linalg.solve(np.eye(5) + M, d)
    gone = filtered(d, g, h, noise, np.diag(told) ** 2 * noise, 0.2)
    np.testing.assert_allclose(gone, expected, rtol=1e-9, atol=1e-12)


@given(st.integers(0, 10**6), st.floats(-300, 300), st.floats(0, 2))
def test_above_a_plateau_the_mean_goes_to_the_middle(seed, exponent, size):
    rng = np.random.default_rng(seed)
    z, above = size * rng.standard_normal((40, 6)), rng.uniform(0.1, 1.0, 3)
    returns = np.full(40, -2.0)
    returns[[7, 29, 33]] += above
    middle = above @ z[[7, 29, 33]] / above.sum()
    way = np.linalg.norm(middle)
    d, _ = gather(z, returns * 10.0**exponent, 8)
    np.testing.assert_allclose(d, middle * min(1.0, math.sqrt(8.0) / max(way, 1e-300)), rtol=1e-6, atol=1e-9)
    most = 2 / math.sqrt(6) if way <= math.sqrt(8.0) else 0.0  # 4 nats
    for n_new, earlier, later in [
        (8, above[0] / 20, (above[1] + above[2]) / 20),
        (30, above[0] / 10, (above[1] + above[2]) / 30),  # more new ones than old ones
    ]:
        closing = min(max(0.2 + (later - earlier) / (later + earlier), 0.0), 1.0)
        scale = gather(z, returns * 10.0**exponent, n_new)[1]
        np.testing.assert_allclose(scale, -most * closing, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(gather(z, returns * 10.0**exponent, 40)[1], -most)


@given(st.integers(0, 10**6), st.floats(-300, 300))
def test_above_a_plateau_a_last_bit_is_a_difference(seed, exponent):
    z = np.random.default_rng(seed).standard_normal((40, 6))
    returns = np.full(40, np.nextafter(1.0, 0.0) * 10.0**exponent)
    returns[0] = np.nextafter(returns[0], np.inf)
    d = gather(z, returns, 8)[0]
    np.testing.assert_allclose(d / np.linalg.norm(d), z[0] / np.linalg.norm(z[0]))


@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(1e-3, 1e3))
def test_the_climb_is_the_best_step_of_its_length(seed, n, bound):
    rng = np.random.default_rng(seed)
    g, h = rng.standard_normal(n), rng.standard_normal(n) * 10.0 ** rng.uniform(-3, 3)
    d = climb(g, h, bound)
    assert d @ d / 2 <= bound * (1 + 1e-9)

    def gained(step):
        return g @ step + 0.5 * h @ step**2

    for _ in range(50):
        other = rng.standard_normal(n)
        other *= math.sqrt(2 * bound) * rng.random() ** (1 / n) / np.linalg.norm(other)
        assert gained(d) >= gained(other) - 1e-9 * (1 + abs(gained(other)))


@given(st.integers(0, 10**6), st.floats(1e-2, 1e3))
def test_the_whole_update_keeps_its_bound_and_uses_it_where_it_counts(seed, bound):
    rng = np.random.default_rng(seed)
    d, p = 10.0 ** rng.uniform(-2, 3) * rng.standard_normal(6), 10.0 ** rng.uniform(-2, 2, 6)

    def divergence(mean, precision):
        return 0.5 * np.sum(1 / precision - 1 + np.log(precision) + mean**2)

    mean, precision, eta = bounded_step(d, p, bound)
    assert divergence(mean, precision) <= bound * (1 + 1e-9)
    if divergence(d, p) <= bound:
        assert eta == 0
        np.testing.assert_allclose(mean, d)
    else:
        assert divergence(mean, precision) == pytest.approx(bound, rel=1e-6)


def test_the_bounded_update_minimises_what_it_says():
    d, p, bound = np.array([3.0, -1.0]), np.array([4.0, 0.6]), 0.7
    mean, precision, eta = bounded_step(d, p, bound)

    def objective(x):
        m, s = x[:2], np.exp(x[2:])  # of the new Gaussian: mean and precision
        to_target = 0.5 * np.sum(p / s - 1 + np.log(s / p) + p * (m - d) ** 2)
        to_old = 0.5 * np.sum(1 / s - 1 + np.log(s) + m**2)
        return to_target + eta * to_old

    best = optimize.minimize(objective, np.zeros(4), tol=1e-12)
    np.testing.assert_allclose(best.x[:2], mean, atol=1e-4)
    np.testing.assert_allclose(np.exp(best.x[2:]), precision, atol=1e-3)


@given(st.integers(2, 2000), st.integers(1, 10**5))
def test_an_update_goes_as_far_as_its_episodes_but_not_too_far(n_new, n):
    far = pace(n_new, n)
    assert far == pytest.approx(min(n_new / 8, max(1.0, np.sqrt(n) / 4)))
    assert far * 2 / np.sqrt(n) <= max(0.5, 2 / np.sqrt(n)) * (1 + 1e-12)
    assert pace(8, n) == 1.0
