"""The constrained fit against a general-purpose solver, and its promises on nasty problems."""

import numpy as np
import pytest
from conftest import dense
from hypothesis import given
from hypothesis import strategies as st
from problems import random_problem
from scipy.optimize import minimize

from klimb.fitting import VARIANCE_FLOOR, constrained_fit, weighted_fit
from klimb.gaussian import unmixed
from klimb.updates import ConstrainedRelativeEntropy


def solve_with_slsqp(std, samples, d, full, epsilon, kappa):
    """Maximum weighted likelihood under both bounds, over mean and Cholesky factor, from the old belief."""
    n = std.size
    lower = np.tril_indices(n) if full else np.diag_indices(n)
    on_diagonal = lower[0] == lower[1]

    def unpack(x):
        L = np.zeros((n, n))
        L[lower] = np.where(on_diagonal, np.exp(np.where(on_diagonal, x[n:], 0)), x[n:])
        return x[:n], L

    y = samples / std

    def loss(x):
        mean, L = unpack(x)
        z = np.linalg.solve(L, (y - mean).T)
        return d @ (0.5 * np.square(z).sum(0)) + np.log(np.diag(L)).sum()

    def kl_slack(x):
        mean, L = unpack(x)
        inverse = np.linalg.inv(L)
        z = inverse @ mean
        return epsilon - 0.5 * (np.square(inverse).sum() - n + z @ z) - np.log(np.diag(L)).sum()

    def entropy_slack(x):
        return np.log(np.diag(unpack(x)[1])).sum() + kappa

    # from well inside the bounds
    found = minimize(
        loss,
        np.zeros(n + lower[0].size),
        jac="3-point",
        method="SLSQP",
        constraints=[
            {"type": "ineq", "fun": kl_slack, "jac": lambda x: three_point(kl_slack, x)},
            {"type": "ineq", "fun": entropy_slack, "jac": lambda x: three_point(entropy_slack, x)},
        ],
        options={"maxiter": 2000, "ftol": 1e-15},
    )
    mean, L = unpack(found.x)
    return mean * std, (L @ L.T) * std * std[:, None], found


def three_point(f, x, h=1e-6):
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(x.size)])


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("case", range(6))
def test_the_closed_form_is_the_solution_that_slsqp_finds(full, n, case):
    rng = np.random.default_rng([n, case])
    std = rng.uniform(0.5, 2.0, n)
    samples = std * (rng.standard_normal((rng.integers(2, 20), n)) + 0.5 * rng.standard_normal(n))
    d = rng.dirichlet(np.ones(len(samples)))
    # both bounds active, one of them, or none
    epsilon, kappa = [(0.1, 0.05), (0.5, 0.2), (0.3, 5.0), (1.5, 0.1), (2.0, 1.0), (0.02, 0.5)][case]
    gaussian, _, _ = constrained_fit(std, samples, d, full, epsilon, kappa)
    mean, covariance, found = solve_with_slsqp(std, samples, d, full, epsilon, kappa)
    assert found.status in (0, 8), found.message  # 8: no further progress at this precision
    np.testing.assert_allclose(gaussian.mean, mean, atol=1e-6)
    np.testing.assert_allclose(dense(gaussian)[1], covariance, atol=1e-6)


@pytest.mark.parametrize("seed", range(300))
def test_both_bounds_hold_on_nasty_problems(seed):
    rng = np.random.default_rng([1, seed])
    problem = random_problem(rng, largest_n=120)
    update = ConstrainedRelativeEntropy(problem.epsilon, problem.kappa)
    full = bool(rng.random() < 0.7)
    posterior, info = update(problem.prior, problem.samples, problem.returns, full)
    kl = problem.prior.kl(posterior)
    drop = problem.prior.entropy - posterior.entropy
    assert kl <= problem.epsilon + 1e-9
    assert drop <= problem.kappa + 1e-9
    if info.eta > 1e-12:
        assert kl == pytest.approx(problem.epsilon, abs=1e-8)
    if info.omega > 1e-9 * (1 + info.eta):
        assert drop == pytest.approx(problem.kappa, abs=1e-8)
    assert posterior.variances.min() > 0
    assert np.isfinite(posterior.mean).all()


def test_loose_bounds_give_the_unconstrained_maximum(rng):
    samples, d = rng.standard_normal((50, 3)), rng.dirichlet(np.ones(50))
    gaussian, eta, omega = constrained_fit(np.ones(3), samples, d, True, 1e3, 1e3)
    mean = d @ samples
    assert eta == omega == 0
    np.testing.assert_allclose(gaussian.mean, mean, atol=1e-12)
    np.testing.assert_allclose(dense(gaussian)[1], (samples - mean).T * d @ (samples - mean), atol=1e-12)


@given(st.integers(0, 10**6), st.booleans())
def test_a_tighter_bound_never_takes_a_larger_step(seed, full):
    rng = np.random.default_rng(seed)
    n, N = rng.integers(1, 8), rng.integers(2, 12)
    samples, d = rng.standard_normal((N, n)), rng.dirichlet(np.ones(N))
    prior = unmixed(np.zeros(n), np.ones(n))
    steps = [
        prior.kl(constrained_fit(np.ones(n), samples, d, full, epsilon, 1.0)[0])
        for epsilon in (0.01, 0.1, 1.0, 10.0)
    ]
    assert (np.diff(steps) >= -1e-9).all()


def test_the_weighted_fit_is_the_weighted_sample_moments(rng):
    std = np.array([0.5, 1.0, 2.0])
    samples, d = rng.standard_normal((30, 3)), rng.dirichlet(np.ones(30))
    mean = d @ samples
    covariance = np.cov(samples.T, aweights=d, ddof=0)
    for full in (True, False):
        gaussian = weighted_fit(std, samples, d, full)
        expected = covariance if full else np.diag(np.diag(covariance))
        np.testing.assert_allclose(gaussian.mean, mean, atol=1e-12)
        np.testing.assert_allclose(
            dense(gaussian)[1], expected + VARIANCE_FLOOR * np.diag(std**2), atol=1e-10
        )


@pytest.mark.parametrize("full", [True, False])
def test_fewer_samples_than_parameters_still_give_a_positive_definite_fit(rng, full):
    gaussian = weighted_fit(np.ones(30), rng.standard_normal((3, 30)), np.array([0.2, 0.8, 0.0]), full)
    assert gaussian.variances.min() >= 0.99 * VARIANCE_FLOOR
