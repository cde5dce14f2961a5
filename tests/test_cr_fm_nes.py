"""CR-FM-NES: checked against its authors' package, and by what holds for all returns."""

import math
from functools import partial

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import klimb
from klimb.baselines.cr_fm_nes import _alpha


def sphere(theta):
    return float(theta @ theta)


def ellipsoid(theta):
    return float(10 ** np.linspace(0, 6, theta.size) @ theta**2)


def rosenbrock(theta):
    return float(scipy.optimize.rosen(theta))


def cigar(theta):
    along = theta.sum() ** 2 / theta.size
    return float(along + 1e6 * (theta @ theta - along))


def start(n, batch=None, seed=3, mean=0.3, std=0.5):
    algorithm = klimb.make_algorithm("cr-fm-nes")
    return algorithm.start(mean=np.full(n, mean), std=std, batch=batch or algorithm.usual_batch(n), seed=seed)


def state(learner):
    (state,) = learner._proposal.draw.args
    return state


def advance(learner, cost, updates):
    for _ in range(updates):
        theta = learner.ask(10**6)
        learner.tell(theta, [-cost(row) for row in theta])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True))


# against the authors' package


@pytest.fixture
def authors(monkeypatch):
    """Make their search, with the draws of klimb's."""
    import crfmnes

    def make(n, cost, seed):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(np.random, "randn", lambda n, count: rng.standard_normal((count, n)).T)
        # which of two equals comes first, the failed ones of a pair among them, is left open there
        monkeypatch.setattr(np, "argsort", partial(np.argsort, kind="stable"))
        population = klimb.make_algorithm("cr-fm-nes").usual_batch(n)
        return crfmnes.CRFMNES(n, lambda x: cost(x.ravel()), np.full((n, 1), 0.3), 0.5, population)

    return make


def beyond_fails(cost, theta):
    return np.inf if theta[0] > 0.6 else cost(theta)


def agree(ours, theirs):
    for value, expected in [(ours.m, theirs.m), (ours.v, theirs.v), (ours.D, theirs.D)]:
        np.testing.assert_allclose(value, expected.ravel(), rtol=1e-9, atol=1e-9)
    assert ours.sigma == pytest.approx(theirs.sigma, rel=1e-9)


COSTS = pytest.mark.parametrize("cost", [sphere, ellipsoid, rosenbrock])
FAILING = pytest.mark.parametrize("failing", [False, True], ids=["all good", "some fail"])
SIZES = pytest.mark.parametrize("n", [2, 3, 5, 10, 40])


@SIZES
@COSTS
@FAILING
def test_it_runs_as_the_authors_package_does(authors, n, cost, failing):
    cost = partial(beyond_fails, cost) if failing else cost
    learner, theirs = start(n, seed=7), authors(n, cost, seed=7)
    for _ in range(25):  # rounding errors grow by a quarter per update in few dimensions
        theirs.one_iteration()
        advance(learner, cost, 1)
        agree(state(learner), theirs)


@SIZES
@COSTS
@FAILING
def test_every_update_of_a_long_run_is_that_of_the_authors_package(authors, n, cost, failing):
    cost = partial(beyond_fails, cost) if failing else cost
    learner, theirs = start(n, seed=8), authors(n, cost, seed=8)
    for _ in range(150):
        now = state(learner)
        theirs.sigma = now.sigma
        for name, value in {"m": now.m, "D": now.D, "v": now.v, "ps": now.p_s, "pc": now.p_c}.items():
            setattr(theirs, name, value.reshape(n, 1).copy())
        theirs.one_iteration()
        advance(learner, cost, 1)
        agree(state(learner), theirs)


def test_alpha_is_the_root_of_its_equation():
    for n in (2, 10, 1000, 10**6):
        assert (1 + _alpha(n) ** 2) * math.exp(_alpha(n) ** 2 / 2) / 0.24 == pytest.approx(10 + n, rel=1e-12)


def test_usual_population_is_even():
    usual = klimb.make_algorithm("cr-fm-nes").usual_batch
    assert [usual(n) for n in (1, 2, 3, 10, 100, 1000)] == [4, 6, 8, 10, 18, 24]


# whatever the returns


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_only_the_order_of_the_returns_counts(data):
    value = st.floats(-1e300, 1e300)
    learner, other = start(4, batch=6), start(4, batch=6)
    for _ in range(4):
        theta = learner.ask(6)
        learner.tell(theta, [-rosenbrock(row) for row in theta])
        ranks = np.argsort(np.argsort([-rosenbrock(row) for row in theta]))
        values = sorted(data.draw(st.lists(value, min_size=6, max_size=6, unique=True)))
        other.tell(other.ask(6), np.array(values)[ranks])
    assert same(state(learner), state(other))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.permutations(range(8)), min_size=3, max_size=3), st.integers(0, 2**32))
def test_the_order_in_which_it_is_told_does_not_count(orders, seed):
    learner, other = start(3, batch=8, seed=seed), start(3, batch=8, seed=seed)
    for order in orders:
        advance(learner, rosenbrock, 1)
        theta = other.ask(8)[order]
        other.tell(theta, [-rosenbrock(row) for row in theta])
    assert same(state(learner), state(other))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-5, 5), min_size=5, max_size=5))
def test_the_units_of_the_parameters_do_not_count(exponents):
    units = 10.0 ** np.array(exponents)
    learner, other = start(5, mean=0.0, std=1.0), start(5, mean=0.0, std=units)
    advance(learner, rosenbrock, 10)
    advance(other, lambda theta: rosenbrock(theta / units), 10)
    np.testing.assert_allclose(other.mean / units, learner.mean, rtol=1e-7, atol=1e-9)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.sampled_from([-1.0, 0.0, 1e300, np.nan]), min_size=6, max_size=6), max_size=20))
def test_covariance_keeps_determinant_1_whatever_it_is_told(batches):
    learner = start(3, batch=6)
    for returns in batches:
        learner.tell(learner.ask(6), returns)
        now = state(learner)
        assert np.isfinite(learner.wanted).all()
        assert (now.D > 0).all()
    if np.isfinite(batches).any():
        root = np.log(now.D).sum() + np.log1p(now.v @ now.v) / 2
        assert root == pytest.approx(0, abs=1e-9)


# failed episodes


def test_batch_that_failed_as_a_whole_changes_nothing_but_the_draws():
    learner = start(5)
    advance(learner, rosenbrock, 5)
    before, tried = state(learner), learner.wanted
    learner.tell(learner.ask(100), np.full(len(tried), np.nan))
    assert same(state(learner), before)
    assert not np.isin(learner.wanted, tried).any()


# the search distribution


def test_draws_have_the_covariance_and_leave_no_trace():
    stds = np.linspace(0.5, 3, 6)
    learner, other = start(6, std=stds), start(6, std=stds)
    for each in (learner, other):
        advance(each, rosenbrock, 40)
    drawn = learner.sample(np.random.default_rng(0), 50_000)
    now = state(learner)
    covariance = now.sigma**2 * np.diag(now.D) @ (np.eye(6) + np.outer(now.v, now.v)) @ np.diag(now.D)
    scale = np.sqrt(np.diag(covariance))
    assert np.allclose(drawn.mean(axis=0), learner.mean, atol=0.02 * scale.max())
    assert np.allclose(
        np.cov(drawn.T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.03
    )
    for each in (learner, other):
        advance(each, rosenbrock, 5)
    assert same(state(learner), state(other))


def test_samples_come_in_pairs_around_the_mean():
    learner = start(4, batch=8)
    advance(learner, rosenbrock, 3)
    theta = learner.ask(8)
    np.testing.assert_allclose((theta[:4] + theta[4:]) / 2, np.tile(learner.mean, (4, 1)), rtol=1e-12)


def test_a_hundred_thousand_parameters_need_no_matrix():
    learner = start(100_000, batch=4)
    advance(learner, sphere, 2)
    assert np.isfinite(learner.sample(np.random.default_rng(0), 2)).all()


# how good


def test_mean_reaches_a_millionth_of_the_start_in_many_dimensions():
    learner = start(200, mean=1.0, std=1.0)
    advance(learner, sphere, 1000)
    assert sphere(learner.mean) < 200e-6


@pytest.mark.parametrize("n", [2, 10, 40])
@pytest.mark.parametrize("batch", [4, 60])
@pytest.mark.parametrize("cost", [lambda theta: -float(theta.sum()), cigar], ids=["slope", "cigar"])
def test_it_stays_finite_on_long_slopes_and_rotated_cigars(n, batch, cost):
    learner = start(n, batch=batch, seed=2)
    advance(learner, cost, 200)
    assert np.isfinite(learner.wanted).all()
    assert (state(learner).D > 0).all()
