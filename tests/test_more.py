"""MORE: the dual regression against explicit features, the update against a general-purpose solver."""

import itertools

import numpy as np
import pytest
from conftest import dense
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from klimb.gaussian import unmixed
from klimb.more import more_update, quadratic_model


def explicit_features(y, full):
    """Hermite polynomials of degree one and two, orthonormal under N(0, I), written out."""
    n = y.shape[1]
    columns = [y[:, i] for i in range(n)] + [(y[:, i] ** 2 - 1) / np.sqrt(2) for i in range(n)]
    if full:
        columns += [y[:, i] * y[:, j] for i, j in itertools.combinations(range(n), 2)]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("N", "n"), [(12, 5), (60, 3)])
def test_the_dual_regression_is_ridge_regression_on_explicit_features(rng, full, N, n):
    y, J = rng.standard_normal((N, n)), rng.standard_normal(N)
    J -= J.mean()
    g, H = quadratic_model(y, J, full)
    X = explicit_features(y, full)
    X -= X.mean(0)

    # for some penalty the primal solution must have this gradient; then its curvature must agree as well
    def primal(penalty):
        return np.linalg.solve(X.T @ X + penalty * np.eye(X.shape[1]), X.T @ J)

    penalties = np.logspace(-8, 6, 2001)
    best = min(penalties, key=lambda penalty: np.abs(primal(penalty)[:n] - g).sum())
    refined = minimize(
        lambda t: np.square(primal(np.exp(t[0]))[:n] - g).sum() * 1e6,
        [np.log(best)],
        method="Nelder-Mead",
        options={"xatol": 1e-12, "fatol": 1e-18},
    )
    w = primal(np.exp(refined.x[0]))
    np.testing.assert_allclose(w[:n], g, atol=1e-7)
    curvature = w[n : 2 * n] * np.sqrt(2)
    np.testing.assert_allclose(np.diag(H) if full else H, curvature, atol=1e-6)
    if full:
        np.testing.assert_allclose(H[np.triu_indices(n, 1)], w[2 * n :], atol=1e-6)
        np.testing.assert_allclose(H, H.T, atol=1e-12)


def test_a_noiseless_quadratic_is_recovered(rng):
    n = 4
    A = rng.standard_normal((n, n))
    H, g = -A @ A.T, rng.standard_normal(n)
    y = rng.standard_normal((200, n))
    J = y @ g + 0.5 * np.einsum("ij,jk,ik->i", y, H, y)
    found_g, found_H = quadratic_model(y, J - J.mean(), True)
    np.testing.assert_allclose(found_g, g, atol=1e-3)
    np.testing.assert_allclose(found_H, H, atol=1e-3)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("epsilon", "kappa"), [(0.1, 0.05), (0.5, 5.0), (3.0, 0.2)])
def test_the_update_is_the_maximum_that_slsqp_finds(rng, full, epsilon, kappa):
    n = 3
    y = rng.standard_normal((60, n))
    J = -np.square(y - 0.7).sum(1) + 0.3 * y[:, 0] * y[:, 1] + 0.1 * rng.standard_normal(60)
    J = (J - J.mean()) / J.std()
    g, H = quadratic_model(y, J, full)
    H = H if full else np.diag(H)
    values, vectors = np.linalg.eigh(H)
    H = (vectors * np.minimum(values, 0)) @ vectors.T
    lower = np.tril_indices(n) if full else np.diag_indices(n)

    def unpack(x):
        L = np.zeros((n, n))
        L[lower] = x[n:]
        return x[:n], L @ L.T

    def loss(x):
        mean, S = unpack(x)
        return -(g @ mean + 0.5 * mean @ H @ mean + 0.5 * np.trace(H @ S))

    def slack(x):
        mean, S = unpack(x)
        log_det = np.linalg.slogdet(S)[1]
        kl = 0.5 * (np.trace(S) + mean @ mean - n - log_det)
        return np.array([epsilon - kl, 0.5 * log_det + kappa])

    start = np.concatenate([np.zeros(n), np.eye(n)[lower]])
    found = minimize(
        loss,
        start,
        jac="3-point",
        method="SLSQP",
        constraints={"type": "ineq", "fun": slack},
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    mean, S = unpack(found.x)
    gaussian, _, _ = more_update(np.ones(n), y, J, full, epsilon, kappa)
    np.testing.assert_allclose(gaussian.mean, mean, atol=2e-4)
    np.testing.assert_allclose(dense(gaussian)[1], S, atol=2e-4)


@given(st.integers(0, 10**6), st.booleans(), st.floats(-3, 1), st.floats(-2, 2))
def test_both_bounds_hold_in_mores_direction(seed, full, log_epsilon, log_kappa):
    rng = np.random.default_rng(seed)
    epsilon, kappa = 10.0**log_epsilon, 10.0**log_kappa
    n, N = rng.integers(1, 30), rng.integers(2, 60)
    std = 10.0 ** rng.uniform(-4, 4, n)
    J = rng.standard_normal(N)
    samples = rng.standard_normal((N, n)) * std * 10.0 ** rng.uniform(-2, 3)
    gaussian, eta, omega = more_update(std, samples, (J - J.mean()) / J.std(), full, epsilon, kappa)
    prior = unmixed(np.zeros(n), np.square(std))
    kl, drop = gaussian.kl(prior), prior.entropy - gaussian.entropy
    assert kl <= epsilon + 1e-8
    assert drop <= kappa + 1e-8
    if eta > 1e-12:
        assert kl == pytest.approx(epsilon, abs=1e-7)
    if omega > 1e-9 * (1 + eta):
        assert drop == pytest.approx(kappa, abs=1e-7)
