"""The quadratic model of the returns: against closed forms, finite differences and fits that leave out."""

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratics import all_alone, draw_pairs, in_pairs, quadratic_returns, standardised
from scipy import stats

from klimb.surrogate import model
from klimb.surrogate.model import fit_surrogate, left_over, unknowns
from klimb.surrogate.returns import scaled


@pytest.mark.parametrize("twins", [in_pairs, all_alone])
def test_the_fit_is_the_posterior_mean_of_the_gaussian_process(rng, twins):
    """Against the textbook: kernel and noise written out entry by entry, the predictions read off a grid."""
    n, N = 3, 24
    z, t = draw_pairs(rng, N // 2, n), np.array([0.7, 0.4, 0.3, 0.05, 0.2, 0.6])
    y, spread = standardised(
        quadratic_returns(z, rng.standard_normal(n), np.diag([1.0, -2.0, 0.5])) + z[:, 0] ** 3
    )
    assert spread > 0
    A = rng.standard_normal((n, n))
    V = A @ A.T / np.trace(A @ A.T)
    std, rotation = np.array([0.5, 2.0, 3.0]), stats.ortho_group.rvs(n, random_state=rng)
    fit = fit_surrogate(z, y, twins(N), V, t, std, rotation)
    frame = rotation @ np.diag(std)  # parameters are frame z
    own = np.diag(np.linalg.inv(frame).T @ V @ np.linalg.inv(frame))

    def kernel(a, b, t):
        k, q = a @ V @ b, [(x @ x - n) / math.sqrt(2 * n) for x in (a, b)]
        along = [own * (frame @ x) ** 2 for x in (a, b)]
        return t[0] * k + t[1] * k * k + t[2] * q[0] * q[1] + t[5] * along[0] @ along[1] + 100.0

    distance = np.array([a @ V @ a for a in z])
    w = np.maximum(1.0, distance / max(1.0, np.sort(distance)[N // 4])) ** (2.5 + 0.5 * N / 200)
    # the amplitudes move once before the last solution
    moved = one_step_of_the_amplitudes(z, y, w, t, twins(N), kernel)
    K = np.array([[kernel(a, b, moved) for b in z] for a in z])
    K += noise_matrix(w, moved, twins(N))
    alpha = np.linalg.solve(K, y)

    def predicted(point):
        return sum(a * (kernel(x, point, moved) - 100.0) for a, x in zip(alpha, z, strict=True))

    e, zero = np.eye(n), predicted(np.zeros(n))
    for i in range(n):
        assert (predicted(e[i]) - predicted(-e[i])) / 2 == pytest.approx(fit.gradient[i], abs=1e-7)
        for j in range(n):
            mixed = predicted(e[i] + e[j]) - predicted(e[i]) - predicted(e[j]) + zero
            assert mixed == pytest.approx(fit.hessian[i, j], abs=1e-6)


def noise_matrix(w, t, twins):
    """Noise t3 w for every row, and t4 w for the even part of twins, half of it for a row alone."""
    noise = np.diag(t[3] * w)
    for i, j in zip(twins.first, twins.second, strict=True):
        noise[np.ix_([i, j], [i, j])] += t[4] * w[i] / 2
    for i in twins.alone:
        noise[i, i] += t[4] * w[i] / 2
    return noise


def parts_of_the_covariance(z, w, twins, kernel):
    """The matrices that the amplitudes multiply."""
    unit = np.eye(6)
    parts = {m: np.array([[kernel(a, b, unit[m]) - 100.0 for b in z] for a in z]) for m in (0, 1, 2, 5)}
    parts |= {m: noise_matrix(w, unit[m], twins) for m in (3, 4)}
    return [parts[m] for m in range(6)]


def one_step_of_the_amplitudes(z, y, w, t, twins, kernel):
    parts = parts_of_the_covariance(z, w, twins, kernel)
    inverse = np.linalg.inv(sum(a * part for a, part in zip(t, parts, strict=True)) + 100.0)
    alpha = inverse @ y
    return t * [math.sqrt(alpha @ part @ alpha / np.trace(inverse @ part)) for part in parts]


@pytest.mark.parametrize("twins", [in_pairs, all_alone])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_of_the_amplitudes_never_lowers_the_likelihood(seed, twins):
    rng = np.random.default_rng(seed)
    n, N = 4, 30
    z = draw_pairs(rng, N // 2, n)
    y, _ = standardised(quadratic_returns(z, rng.standard_normal(n), np.eye(n)) + rng.standard_normal(N))
    t = 10.0 ** rng.uniform(-3, 1, 6)
    V, w = np.eye(n) / n, np.ones(N)

    def kernel(a, b, t):
        k, q = a @ V @ b, [(x @ x - n) / math.sqrt(2 * n) for x in (a, b)]
        return t[0] * k + t[1] * k * k + t[2] * q[0] * q[1] + t[5] * (a**2 @ b**2) / n**2 + 100.0

    parts = parts_of_the_covariance(z, w, twins(N), kernel)

    def likelihood(t):
        covariance = sum(a * part for a, part in zip(t, parts, strict=True)) + 100.0
        return stats.multivariate_normal(np.zeros(N), covariance).logpdf(y)

    after = one_step_of_the_amplitudes(z, y, w, t, twins(N), kernel)
    assert likelihood(after) >= likelihood(t) - 1e-9


def test_held_out_residuals_are_those_of_fits_without_the_episode(rng, monkeypatch):
    """The skill in closed form against really leaving every pair out, with the amplitudes held fixed."""
    monkeypatch.setattr(model, "STEPS", 1)
    n, N = 3, 20
    z = 0.1 * draw_pairs(rng, N // 2, n)  # so near that all weigh the same
    y, _ = standardised(quadratic_returns(z, np.ones(n), -np.eye(n)) + 0.05 * rng.standard_normal(N))
    t, V = np.array([30.0, 10.0, 0.1, 0.02, 0.01, 5.0]), np.eye(n) / n
    fit = fit_surrogate(z, y, in_pairs(N), V, t, np.ones(n))

    def kernel(a, b):
        k = a @ b / n
        q = [(x @ x - n) / math.sqrt(2 * n) for x in (a, b)]
        return t[0] * k + t[1] * k * k + t[2] * q[0] * q[1] + t[5] * (a**2 @ b**2) / n**2 + 100.0

    K = np.array([[kernel(a, b) for b in z] for a in z])
    noise = noise_matrix(np.ones(N), t, in_pairs(N))
    left_out = np.empty(N)
    for i in range(0, N, 2):
        out, rest = [i, i + 1], [j for j in range(N) if j not in (i, i + 1)]
        alpha = np.linalg.solve((K + noise)[np.ix_(rest, rest)], y[rest])
        left_out[out] = y[out] - K[np.ix_(out, rest)] @ alpha
    turn = np.kron(np.eye(N // 2), np.array([[1.0, -1.0], [1.0, 1.0]]) / math.sqrt(2))
    weight = np.tile([1 / t[3], 1 / (t[3] + t[4])], N // 2)
    parts, constant = turn @ y, turn @ np.ones(N)
    mean = (weight * constant) @ parts / ((weight * constant) @ constant)
    before = weight * (parts - mean * constant) ** 2
    after = weight * (turn @ left_out) ** 2
    share = 1 - after.sum() / before.sum()
    error = math.sqrt(N) * np.std(before - after - share * before) / before.sum()
    expected = share - error / 2
    assert 0.1 < expected < 0.999
    assert fit.skill == pytest.approx(expected, rel=1e-6)


def test_enough_episodes_reveal_the_quadratic(rng):
    n, N = 5, 120
    g, H = rng.standard_normal(n), -np.diag([4.0, 1.0, 0.5, 0.0, 0.0])
    z = draw_pairs(rng, N // 2, n)
    y, spread = standardised(quadratic_returns(z, g, H))
    V, t = np.eye(n) / n, None
    for _ in range(15):
        fit = fit_surrogate(z, y, in_pairs(N), V, t, np.ones(n))
        t = fit.amplitudes
    np.testing.assert_allclose(fit.gradient * spread, g, atol=1e-3)
    np.testing.assert_allclose(fit.hessian * spread, H, atol=1e-2)
    assert fit.skill > 0.99


@pytest.mark.parametrize("full", [True, False])
def test_runs_of_the_mean_tell_what_the_spread_costs(rng, full):
    """In many directions all samples are about equally far away, and hardly tell curvature by themselves."""
    n, N, curvature = 100, 100, 0.2
    errors = {0: 0.0, 8: 0.0}
    for at_mean in errors:
        for _ in range(12):
            z, t = draw_pairs(rng, N // 2, n), None
            z[:at_mean] = 0
            length = np.square(z).sum(1)
            returns = -curvature / 2 * length + 5 * rng.standard_normal(N)
            y, spread = scaled(returns, length)
            for _ in range(10):  # until the amplitudes have settled
                fit = fit_surrogate(
                    z, y, in_pairs(N), np.eye(n) / n if full else np.ones(n) / n, t, np.ones(n)
                )
                t = fit.amplitudes
            total = float(np.trace(fit.hessian) if full else fit.hessian.sum()) * spread
            errors[at_mean] += (total + n * curvature) ** 2 / 12
    assert errors[8] < errors[0] / 2
    assert math.sqrt(errors[8]) < 0.25 * n * curvature


@given(st.integers(0, 2**32 - 1), st.integers(0, 5), st.integers(1, 9))
def test_what_is_left_over_is_that_of_odd_parts_or_of_the_others(seed, n_pairs, others):
    rng = np.random.default_rng(seed)
    rest, weight = rng.standard_normal(n_pairs + others), rng.uniform(0.1, 2.0, n_pairs + others)
    groups = [slice(n_pairs, None)] + [slice(n_pairs)] * (n_pairs > 0)
    expected = max(np.average(rest[group] ** 2, weights=weight[group]) for group in groups)
    assert left_over(rest, weight, n_pairs) == pytest.approx(expected)
    assert left_over(0 * rest, weight, n_pairs) > 0


@given(st.integers(1, 60))
def test_a_quadratic_has_a_number_for_every_product_of_two_parameters_at_most(n):
    assert unknowns(n, full=True) == sum(1 for _ in combinations_with_replacement(range(n + 1), 2))
    assert unknowns(n, full=False) == 1 + n + n


@pytest.mark.parametrize("full", [True, False])
def test_noise_keeps_the_slope_in_the_prior_only_as_far_as_it_is_what_is_unexplained(rng, full):
    """A bowl around the mean has no slope; a little noise beside a large remainder is no reason for one."""
    n, N = 3, 60
    z = draw_pairs(rng, N // 2, n)
    y, _ = standardised(-np.square(z).sum(1))
    V = np.eye(n) / n if full else np.full(n, 1 / n)
    t = np.array([1e-3, 1.0, 1.0, 1.0, 1.0, 1.0])

    def slope(measured):
        fit = fit_surrogate(z, y, in_pairs(N), V, t, np.ones(n), None, measured)
        return fit.amplitudes[0]

    assert slope(1.0) > 0.01
    assert slope(0.0) <= slope(1e-6) < 1e-3 * slope(1.0)
