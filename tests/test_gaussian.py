"""The search distribution against scipy and against dense matrices."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from conftest import dense, random_covariance, random_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from klimb.gaussian import Gaussian, diagonal, from_covariance, from_whitened, unmixed

MIXED = [None, (), (0,), (1, 3), (0, 2, 4)]


@pytest.mark.parametrize("mixed", MIXED)
def test_covariance_and_std_are_those_of_the_definition(rng, mixed):
    gaussian = random_gaussian(rng, 5, mixed) if mixed != () else unmixed(np.zeros(5), rng.uniform(1, 2, 5))
    _, covariance = dense(gaussian)
    np.testing.assert_allclose(gaussian.covariance, covariance, atol=1e-12)
    np.testing.assert_allclose(gaussian.std, np.sqrt(np.diag(covariance)), rtol=1e-12)


@pytest.mark.parametrize("mixed", MIXED[:1] + MIXED[2:])
def test_density_and_entropy_equal_scipy(rng, mixed):
    gaussian = random_gaussian(rng, 5, mixed)
    oracle = multivariate_normal(*dense(gaussian))
    theta = rng.standard_normal((20, 5)) * 2
    np.testing.assert_allclose(gaussian.log_pdf(theta), oracle.logpdf(theta), rtol=1e-10)
    assert gaussian.entropy == pytest.approx(oracle.entropy(), abs=1e-10)


@pytest.mark.parametrize("first", MIXED[:1] + MIXED[2:])
@pytest.mark.parametrize("second", MIXED[:1] + MIXED[2:])
def test_kl_equals_the_dense_formula(rng, first, second):
    p, q = random_gaussian(rng, 5, first), random_gaussian(rng, 5, second)
    (mp, Sp), (mq, Sq) = dense(p), dense(q)
    inverse = np.linalg.inv(Sq)
    shift = mq - mp
    expected = 0.5 * (
        np.trace(inverse @ Sp)
        - 5
        + shift @ inverse @ shift
        + np.linalg.slogdet(Sq)[1]
        - np.linalg.slogdet(Sp)[1]
    )
    assert p.kl(q) == pytest.approx(expected, rel=1e-9)
    assert p.kl(p) == pytest.approx(0, abs=1e-12)


@given(st.integers(1, 8), st.integers(0, 10**6))
def test_local_coordinates_and_back_are_the_identity(n, seed):
    rng = np.random.default_rng(seed)
    gaussian = random_gaussian(rng, n, rng.permutation(n)[: rng.integers(1, n + 1)].copy())
    theta = rng.standard_normal((4, n))
    original = theta.copy()
    np.testing.assert_allclose(gaussian.from_local(gaussian.to_local(theta)), theta, atol=1e-12)
    np.testing.assert_array_equal(theta, original)


@pytest.mark.parametrize("mixed", MIXED[:1] + MIXED[2:])
def test_samples_have_the_moments_of_the_distribution(rng, mixed):
    gaussian = random_gaussian(rng, 5, mixed)
    theta = gaussian.sample(rng, 200_000)
    mean, covariance = dense(gaussian)
    scale = np.sqrt(np.diag(covariance))
    assert np.abs((theta.mean(0) - mean) / scale).max() < 5 / np.sqrt(200_000)
    error = (np.cov(theta.T) - covariance) / scale / scale[:, None]
    assert np.abs(error).max() < 0.02


def with_equal_axes(seed):
    """A Gaussian of which some axes are of equal length, and the same with these turned among themselves."""
    rng = np.random.default_rng(seed)
    gaussian = random_gaussian(rng, 8, np.array([0, 1, 2, 4, 5, 7]))
    equals = [1, 2, 5]  # places among the mixed
    gaussian.variances[gaussian.mixed[equals]] = 0.3
    rotation = gaussian.rotation.copy()
    rotation[:, equals] = rotation[:, equals] @ np.linalg.qr(rng.standard_normal((3, 3)))[0]
    return gaussian, replace(gaussian, rotation=rotation)


@given(st.integers(0, 10**6))
def test_samples_do_not_depend_on_the_axes_chosen_among_equals(seed):
    one, other = with_equal_axes(seed)
    drawn = [gaussian.sample(np.random.default_rng(seed), 5) for gaussian in (one, other)]
    np.testing.assert_allclose(*drawn, atol=1e-12)


@given(st.integers(0, 10**6))
def test_settled_axes_are_those_of_the_distribution_alone(seed):
    one, other = with_equal_axes(seed)
    settled = one.with_settled_axes()
    assert not np.allclose(one.rotation, other.rotation, atol=1e-3)
    np.testing.assert_allclose(settled.rotation, other.with_settled_axes().rotation, atol=1e-6)
    np.testing.assert_allclose(settled.covariance, one.covariance, atol=1e-12)
    np.testing.assert_allclose(settled.rotation.T @ settled.rotation, np.eye(6), atol=1e-12)


def test_axes_that_all_differ_are_settled_as_they_are(rng):
    gaussian = random_gaussian(rng, 6)
    assert gaussian.with_settled_axes() is gaussian


def test_local_samples_are_uncorrelated_with_the_stated_variances(rng):
    gaussian = random_gaussian(rng, 4)
    local = gaussian.to_local(gaussian.sample(rng, 200_000))
    np.testing.assert_allclose(
        np.cov(local.T), np.diag(gaussian.variances), atol=0.03 * gaussian.variances.max()
    )


@given(st.integers(0, 10**6))
def test_replacing_a_block_equals_the_dense_computation(seed):
    rng = np.random.default_rng(seed)
    n = 6
    gaussian = random_gaussian(rng, n, np.sort(rng.permutation(n)[:3]))
    block = np.sort(rng.permutation(n)[: rng.integers(1, n + 1)])
    local = random_gaussian(rng, block.size)
    new = gaussian.with_block(block, local)
    # in local coordinates: the block replaced, the rest as it was
    mean, covariance = np.zeros(n), np.diag(gaussian.variances)
    mean[block] = local.mean
    covariance[np.ix_(block, block)] = dense(local)[1]
    U = gaussian.from_local(np.eye(n)).T - gaussian.mean[:, None]
    np.testing.assert_allclose(new.mean, gaussian.mean + U @ mean, atol=1e-10)
    np.testing.assert_allclose(new.covariance, U @ covariance @ U.T, atol=1e-10)
    assert set(new.mixed) == set(gaussian.mixed) | set(block if block.size > 1 else [])
    np.testing.assert_allclose(new.rotation @ new.rotation.T, np.eye(new.mixed.size), atol=1e-12)


def test_a_diagonal_block_mixes_nothing(rng):
    gaussian = unmixed(np.zeros(4), np.ones(4))
    new = gaussian.with_block(np.array([1, 2]), unmixed(np.ones(2), np.array([4.0, 9.0])))
    assert new.mixed.size == 0
    np.testing.assert_array_equal(new.variances, [1, 4, 9, 1])
    np.testing.assert_array_equal(new.mean, [0, 1, 1, 0])


def test_a_million_parameters_never_make_a_square_matrix(rng):
    n = 1_000_000
    tracemalloc.start()
    gaussian = unmixed(np.zeros(n), np.ones(n)).with_block(np.arange(0, 50), random_gaussian(rng, 50))
    gaussian = gaussian.with_block(np.arange(999_950, n), random_gaussian(rng, 50))
    assert gaussian.rotation.shape == (100, 100)
    assert gaussian.kl(gaussian) == pytest.approx(0, abs=1e-9)
    gaussian.to_local(gaussian.sample(rng, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 8 * n


@pytest.mark.parametrize("decades", [0, 6, 12, 30])
def test_short_axes_keep_their_precision_beside_long_ones(rng, decades):
    """Covariance diag(std) W diag(std): its determinant is known exactly, and so is the KL to diag(std^2)."""
    n = 12
    W = random_covariance(rng, n, condition=10.0)
    rows = np.linalg.cholesky(W).T
    std = 10.0 ** np.linspace(0, -decades / 2, n)
    log_det = np.linalg.slogdet(W)[1]
    gaussian = from_whitened(np.zeros(n), std, rows, log_det)
    assert np.log(gaussian.variances).sum() == pytest.approx(log_det + 2 * np.log(std).sum(), abs=1e-10)
    whitened = 0.5 * (np.trace(np.linalg.inv(W)) - n + log_det)
    tolerance = 1e-10 if decades <= 12 else 1e-3  # entries of the rotation are rounded to 1e-16 themselves
    assert unmixed(np.zeros(n), std**2).kl(gaussian) == pytest.approx(whitened, abs=tolerance)


def test_from_covariance_keeps_the_covariance(rng):
    covariance = random_covariance(rng, 7)
    gaussian = from_covariance(np.arange(7.0), covariance)
    np.testing.assert_allclose(gaussian.covariance, covariance, rtol=1e-10, atol=1e-12)
    assert from_covariance(np.zeros(3), np.diag([1.0, 2.0, 3.0])).mixed.size == 0


@pytest.mark.parametrize(
    ("covariance", "message"),
    [
        (np.eye(2), "shape"),
        (np.ones((3, 3)), "positive definite"),
        (-np.eye(3), "positive definite"),
        (np.array([[1, 0.5, 0], [0, 1, 0], [0, 0, 1.0]]), "symmetric"),
        (np.diag([1, np.nan, 1.0]), "finite"),
        (np.array([[1, 2, 0], [2, 1, 0], [0, 0, 1.0]]), "positive definite"),
        ("no numbers", "numbers"),
    ],
)
def test_a_bad_covariance_is_refused(covariance, message):
    with pytest.raises(ValueError, match=message):
        from_covariance(np.zeros(3), covariance)


@pytest.mark.parametrize("std", [0.0, -1.0, np.nan, np.inf, [1.0, 2.0], [1.0, 0.0, 1.0]])
def test_a_bad_std_is_refused(std):
    with pytest.raises(ValueError, match="std"):
        diagonal(np.zeros(3), std)


def test_gaussians_are_immutable(rng):
    gaussian = random_gaussian(rng, 3)
    with pytest.raises(AttributeError):
        gaussian.mean = np.zeros(3)
    mean = np.zeros(3)
    made = diagonal(mean, 1.0)
    mean[0] = 5
    assert made.mean[0] == 0
    assert isinstance(made, Gaussian)
