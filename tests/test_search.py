"""Asking and telling: streams, guided dimensionality reduction, prioritized exploration, PRO."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import dense, random_covariance
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import klimb
import klimb.weighting
from klimb.algorithms import ALGORITHMS, make_algorithm
from klimb.gaussian import Gaussian, unmixed
from klimb.search import Adam, largest, tell
from klimb.state import Start
from klimb.surrogate.follow import WIDEST, wide_look

PLAIN = {"rwr": {}, "reps": {}, "creps": {}, "more": {}, "cem": {"n_elite": 5}, "nes": {}, "es": {}}


def quadratic(theta):
    return -np.square(theta - 0.5).sum(1) + theta[:, 0] * theta[:, -1]


def learn(algorithm, n=6, updates=3, batch=20, seed=0, **start):
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(n), seed=seed, **(start or {"std": 0.5}))
    for _ in range(updates):
        theta = optimizer.ask(batch)
        optimizer.tell(theta, quadratic(theta))
    return optimizer


@pytest.mark.parametrize("name", ["creps", "nes", "dr-creps"])
def test_asking_in_pieces_gives_what_asking_at_once_gives(name):
    whole, pieces = (learn(make_algorithm(name), n=7) for _ in range(2))
    at_once = whole.ask(11)
    parts = np.vstack([pieces.ask(k) for k in (1, 2, 1, 3, 4)])
    np.testing.assert_array_equal(at_once, parts)


def test_every_iteration_and_seed_has_its_own_stream():
    first, other = learn(klimb.es(), seed=0, updates=0), learn(klimb.es(), seed=1, updates=0)
    a, b = first.ask(4), other.ask(4)
    assert not np.isclose(a, b).any()
    first.tell(a, np.ones(4))  # no information: only the iteration moves on
    assert not np.isclose(first.ask(4), a).any()


def test_the_streams_of_samples_are_independent():
    """Many rows of few parameters: each row starts a stream, so a pattern in the starts would show here."""
    N = 40_000
    z = klimb.Optimizer(klimb.creps(), mean=np.zeros(3), std=1.0, seed=3).ask(N)
    for column in z.T:
        assert stats.kstest(column, "norm").pvalue > 1e-4
        assert abs(column.mean()) < 4 / np.sqrt(N)
        assert abs(column.var() - 1) < 4 * np.sqrt(2 / N)
        for lag in (1, 2, 3, 64):
            assert abs(np.mean(column[lag:] * column[:-lag])) < 4 / np.sqrt(N)
    assert np.abs(np.corrcoef(z.T) - np.eye(3)).max() < 4 / np.sqrt(N)


def test_samples_before_the_first_update_come_from_the_belief(rng):
    covariance = random_covariance(rng, 3)
    optimizer = klimb.Optimizer(klimb.creps(), mean=np.arange(3.0), covariance=covariance, seed=0)
    theta = optimizer.ask(50_000)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(theta.mean(0), np.arange(3.0), atol=0.03 * scale.max())
    np.testing.assert_allclose(
        np.cov(theta.T) / scale / scale[:, None], covariance / scale / scale[:, None], atol=0.03
    )


def test_mirrored_samples_come_in_pairs_around_the_mean():
    optimizer = learn(klimb.nes())
    theta = optimizer.ask(6)
    np.testing.assert_allclose((theta[::2] + theta[1::2]) / 2, np.tile(optimizer.mean, (3, 1)), atol=1e-12)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_reducing_to_all_parameters_equals_the_plain_update(name, covariance):
    plain = make_algorithm(name, covariance=covariance, **PLAIN[name])
    reduced = make_algorithm(name, covariance=covariance, reduce=True, n_effective=6, **PLAIN[name])
    a, b = learn(plain), learn(reduced)
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-10)
    np.testing.assert_allclose(a.covariance, b.covariance, atol=1e-10)


@pytest.mark.parametrize("name", PLAIN)
def test_reduction_leaves_the_other_coordinates_alone(name):
    algorithm = make_algorithm(name, covariance="full", reduce=True, n_effective=2, **PLAIN[name])
    optimizer = learn(algorithm, updates=0)
    before = optimizer.belief
    theta = optimizer.ask(20)
    info = optimizer.tell(theta, quadratic(theta))
    assert info.selected.size == 2
    others = np.setdiff1d(np.arange(6), info.selected)
    np.testing.assert_array_equal(optimizer.mean[others], before.mean[others])
    np.testing.assert_array_equal(optimizer.belief.variances[others], before.variances[others])
    assert not np.array_equal(optimizer.mean[info.selected], before.mean[info.selected])
    assert set(optimizer.belief.mixed) <= set(info.selected)


def test_the_reduced_update_is_the_plain_update_of_the_selected_block():
    """GDR by hand: rotate, cut out the selected coordinates, update them alone, put them back."""
    optimizer = learn(klimb.dr_creps(1.0, 2.0, n_effective=3, damping=1.0), updates=2)
    mean, covariance = dense(optimizer.belief)
    rotation = optimizer.belief.from_local(np.eye(6)).T - mean[:, None]
    variances = optimizer.belief.variances
    theta = optimizer.ask(20)
    info = optimizer.tell(theta, quadratic(theta))
    local = (theta - mean) @ rotation
    correlation = [abs(np.corrcoef(column, quadratic(theta))[0, 1]) for column in local.T]
    assert set(np.argsort(correlation)[-3:]) == set(info.selected)
    small = klimb.Optimizer(klimb.creps(1.0, 2.0), mean=np.zeros(3), std=np.sqrt(variances[info.selected]))
    small.tell(local[:, info.selected], quadratic(theta))
    S, step = rotation.T @ covariance @ rotation, np.zeros(6)
    S[np.ix_(info.selected, info.selected)] = small.covariance
    step[info.selected] = small.mean
    np.testing.assert_allclose(optimizer.mean, mean + rotation @ step, atol=1e-10)
    np.testing.assert_allclose(optimizer.covariance, rotation @ S @ rotation.T, atol=1e-10)


@pytest.mark.parametrize(
    "algorithm",
    [
        klimb.dr_creps(1.0, 2.0, n_effective=2, damping=0.25),
        klimb.creps(1.0, 2.0, n_effective=2, damping=0.25, covariance="diagonal"),
        klimb.creps(1.0, 2.0, n_effective=2, damping=0.25),
    ],
)
def test_prioritized_exploration_shrinks_the_unselected_variances_of_samples_only(algorithm):
    optimizer = learn(algorithm, updates=2)
    belief = optimizer.belief
    local = belief.to_local(optimizer.ask(40_000))
    ratio = local.var(0) / belief.variances
    assert np.sort(ratio) == pytest.approx([0.25] * 4 + [1.0] * 2, rel=0.05)
    np.testing.assert_allclose(local.mean(0), 0, atol=0.03 * np.sqrt(belief.variances.max()))


@pytest.mark.parametrize("name", PLAIN)
def test_damping_of_one_samples_the_belief(name):
    plain = make_algorithm(name, **PLAIN[name])
    off = make_algorithm(name, damping=1.0, effectiveness="pearson", **PLAIN[name])
    np.testing.assert_array_equal(learn(plain).ask(5), learn(off).ask(5))


def test_exploration_is_measured_anew_when_a_full_update_turns_the_axes():
    optimizer = learn(klimb.creps(1.0, 2.0, n_effective=2, damping=0.01), updates=0)
    theta = optimizer.ask(30)
    optimizer.tell(theta, quadratic(theta))
    local = optimizer.belief.to_local(theta)
    correlation = [abs(np.corrcoef(column, quadratic(theta))[0, 1]) for column in local.T]
    drawn = optimizer.belief.to_local(optimizer.ask(4000)).var(0) / optimizer.belief.variances
    assert set(np.argsort(drawn)[-2:]) == set(np.argsort(correlation)[-2:])


def test_pro_moves_each_deviation_by_its_relevance_and_samples_by_it():
    optimizer = learn(klimb.pro(2.0, covariance="diagonal"), updates=0)
    theta = optimizer.ask(30)
    J = quadratic(theta)
    info = optimizer.tell(theta, J)
    rho = np.array([abs(np.corrcoef(column, J)[0, 1]) for column in theta.T])
    rho /= rho.max()
    np.testing.assert_allclose(info.effectiveness / info.effectiveness.max(), rho, atol=1e-10)
    rwr = learn(klimb.rwr(2.0, covariance="diagonal"), updates=0)
    rwr.tell(theta, J)
    np.testing.assert_allclose(optimizer.mean, rwr.mean, atol=1e-12)
    np.testing.assert_allclose(optimizer.std, (1 - rho) * 0.5 + rho * rwr.std, atol=1e-10)
    drawn = optimizer.ask(40_000).var(0)
    np.testing.assert_allclose(drawn, rho * optimizer.std**2, rtol=0.05, atol=1e-6)


def test_pro_can_be_reduced_to_the_selected_parameters():
    optimizer = learn(klimb.pro(2.0, reduce=True, n_effective=2), updates=0)
    theta = optimizer.ask(30)
    info = optimizer.tell(theta, quadratic(theta))
    others = np.setdiff1d(np.arange(6), info.selected)
    assert info.selected.size == 2
    np.testing.assert_array_equal(optimizer.mean[others], 0)
    np.testing.assert_array_equal(optimizer.std[others], 0.5)
    assert (optimizer.std[info.selected] != 0.5).all()


def test_the_divergence_reported_with_adam_is_that_of_the_step_taken():
    optimizer = learn(klimb.nes(0.2), updates=1)
    old = optimizer.belief
    theta = optimizer.ask(20)
    info = optimizer.tell(theta, quadratic(theta))
    assert info.kl == pytest.approx(old.kl(optimizer.belief), rel=1e-12)


def test_pro_with_a_full_covariance_keeps_the_fitted_correlations():
    optimizers = [learn(klimb.pro(2.0), updates=0), learn(klimb.rwr(2.0), updates=0)]
    theta = optimizers[0].ask(30)
    for optimizer in optimizers:
        optimizer.tell(theta, quadratic(theta))
    pro, rwr = (o.covariance / o.std / o.std[:, None] for o in optimizers)
    np.testing.assert_allclose(pro, rwr, atol=1e-9)


@given(st.integers(0, 10**6), st.sampled_from(["creps", "reps", "more", "rwr", "nes", "es", "cem"]))
def test_the_full_update_does_not_depend_on_the_choice_of_axes(seed, name):
    rng = np.random.default_rng(seed)
    n = 4
    Q, _ = np.linalg.qr(rng.standard_normal((n, n)))
    algorithm = make_algorithm(name, covariance="full", **PLAIN[name])
    covariance, theta = random_covariance(rng, n, 10.0), rng.standard_normal((25, n))
    J = rng.standard_normal(25)
    plain = klimb.Optimizer(algorithm, mean=np.zeros(n), covariance=covariance)
    turned = klimb.Optimizer(algorithm, mean=np.zeros(n), covariance=Q @ covariance @ Q.T)
    plain.tell(theta, J)
    turned.tell(theta @ Q.T, J)
    np.testing.assert_allclose(turned.mean, Q @ plain.mean, atol=1e-6)
    np.testing.assert_allclose(turned.covariance, Q @ plain.covariance @ Q.T, atol=1e-6)


@given(st.integers(0, 10**6), st.sampled_from(sorted(ALGORITHMS)))
def test_the_order_of_episodes_does_not_matter(seed, name):
    rng = np.random.default_rng(seed)
    algorithm = make_algorithm(name, **({"n_elite": 5} if name == "cem" else {}))
    theta, J = rng.standard_normal((20, 5)), rng.integers(0, 8, 20).astype(float)
    J[0] = 9.0
    shuffle = rng.permutation(20)
    a = klimb.Optimizer(algorithm, mean=np.zeros(5), std=1.0, seed=0)
    b = klimb.Optimizer(algorithm, mean=np.zeros(5), std=1.0, seed=0)
    a.tell(theta, J)
    b.tell(theta[shuffle], J[shuffle])
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-7)
    np.testing.assert_allclose(a.covariance, b.covariance, atol=1e-7)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.data())
def test_the_largest_are_chosen_and_of_equals_the_first(values, data):
    count = data.draw(st.integers(1, len(values)))
    array = np.array(values, dtype=float)
    expected = np.sort(np.argsort(-array, kind="stable")[:count])
    np.testing.assert_array_equal(largest(array, count), expected)


def test_adam_takes_the_published_steps(rng):
    adam, memory, m, v = Adam(0.1), (), np.zeros(3), np.zeros(3)
    for k in range(5):
        g = rng.standard_normal(3)
        step, memory = adam(g, memory, k)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        expected = 0.1 * (m / (1 - 0.9 ** (k + 1))) / np.sqrt(v / (1 - 0.999 ** (k + 1)))
        np.testing.assert_allclose(step, expected, rtol=1e-10)


def test_xnes_and_snes_follow_the_published_update(rng):
    theta, n = rng.standard_normal((12, 3)), 3
    J = quadratic(theta)
    u = klimb.weighting.rank_utilities(J)
    G = sum(w * (np.outer(z, z) - np.eye(n)) for w, z in zip(u, theta, strict=True))
    full = klimb.Optimizer(klimb.nes(covariance="full"), mean=np.zeros(n), std=1.0)
    full.tell(theta, J)
    values, vectors = np.linalg.eigh((9 + 3 * np.log(n)) / (5 * n * np.sqrt(n)) / 2 * G)
    A = (vectors * np.exp(values)) @ vectors.T
    np.testing.assert_allclose(full.covariance, A @ A.T, atol=1e-10)
    np.testing.assert_allclose(full.mean, u @ theta, atol=1e-12)
    separable = klimb.Optimizer(klimb.nes(), mean=np.zeros(n), std=1.0)
    separable.tell(theta, J)
    rate = (3 + np.log(n)) / (5 * np.sqrt(n))
    np.testing.assert_allclose(separable.std, np.exp(rate / 2 * np.diag(G)), atol=1e-12)


def test_long_runs_keep_the_rotation_orthogonal():
    optimizer = learn(klimb.dr_creps(0.5, 0.2, n_effective=5, damping=0.5), n=12, updates=400)
    R = optimizer.belief.rotation
    assert np.abs(R @ R.T - np.eye(len(R))).max() < 1e-11
    assert np.linalg.eigvalsh(optimizer.covariance).min() > 0


@pytest.mark.parametrize("name", [*PLAIN, "pro", "dr-creps", "creps-pe"])
def test_reuse_is_the_plain_update_of_the_kept_and_the_new_episodes(name):
    plain = make_algorithm(name, **PLAIN.get(name, {}))
    optimizer = klimb.Optimizer(replace(plain, reuse=15), mean=np.zeros(5), std=0.5, seed=3)
    told = np.empty((0, 5))
    for batch in (10, 12, 8, 6):
        theta = optimizer.ask(batch)
        joined = np.vstack([told[-15:], theta])
        before = replace(optimizer.state, kept=None)
        expected, info = tell(plain, before, joined, quadratic(joined), seed=3)
        made = optimizer.tell(theta, quadratic(theta))
        told = np.vstack([told, theta])
        np.testing.assert_array_equal(optimizer.mean, expected.belief.mean)
        np.testing.assert_array_equal(optimizer.belief.variances, expected.belief.variances)
        assert made.kl == info.kl
        assert made.n_used == batch
        np.testing.assert_array_equal(optimizer.state.kept.theta, told[-15:])


def test_kept_episodes_that_lie_out_of_reach_are_forgotten_and_new_ones_refused():
    optimizer = klimb.Optimizer(klimb.creps(1.0, 1.0, reuse=10), mean=np.zeros(2), std=1.0, seed=0)
    theta = optimizer.ask(6)
    optimizer.tell(theta, quadratic(theta))
    optimizer._state = replace(optimizer.state, belief=unmixed(np.zeros(2), np.full(2, 1e-120)))
    with pytest.raises(ValueError, match=r"theta\[2\] lies more than"):
        optimizer.tell(theta[2:3].repeat(3, axis=0) * [[1e-70], [1e-70], [1.0]], [1.0, 2.0, 3.0])
    theta = optimizer.ask(6)
    optimizer.tell(theta, theta[:, 0])
    np.testing.assert_array_equal(optimizer.state.kept.theta, theta)


def test_kept_episodes_make_equal_returns_of_a_batch_tell_something():
    optimizer = klimb.Optimizer(klimb.creps(1.0, 1.0, reuse=6), mean=np.zeros(2), std=1.0, seed=0)
    theta = optimizer.ask(6)
    optimizer.tell(theta, quadratic(theta))
    assert optimizer.tell(optimizer.ask(4), np.zeros(4)).informative
    for _ in range(2):
        last = optimizer.tell(optimizer.ask(4), np.zeros(4))
    assert not last.informative


@given(st.integers(0, 10**6), st.integers(1, 6), st.floats(0, 1), st.booleans())
def test_in_noise_samples_are_as_wide_as_the_first_but_not_narrower_than_the_belief(seed, n, noise, full):
    rng = np.random.default_rng(seed)
    std, variances = 10.0 ** rng.uniform(-2, 2, n), 10.0 ** rng.uniform(-4, 2, n)
    start = Start(np.zeros(n), std, 0.0)
    belief = unmixed(np.zeros(n), variances)
    along = std
    if full:
        rotation = np.linalg.qr(rng.standard_normal((n, n)))[0]
        belief = Gaussian(np.zeros(n), variances, np.arange(n), rotation)
        along = np.sqrt(np.diag(rotation.T @ np.diag(std**2) @ rotation))
    factors = wide_look(belief, start, noise)
    if noise == 0:
        assert factors is None
        return
    wide = np.sqrt(factors * variances)
    narrow = np.sqrt(variances)
    assert (factors >= 1).all()
    assert (wide <= np.maximum(narrow, along) * (1 + 1e-9)).all()
    expected = np.minimum(narrow ** (1 - noise) * along**noise, WIDEST * narrow)
    np.testing.assert_allclose(wide, np.maximum(narrow, expected), rtol=1e-9)


def test_samples_widen_in_noise_only(rng):
    def wide(noise):
        optimizer = klimb.Optimizer(mean=np.zeros(6), std=1.0, seed=0)
        for _ in range(30):
            theta = optimizer.ask(8)
            optimizer.tell(theta, -np.square(theta - 0.3).sum(1) + noise * rng.standard_normal(8))
        belief = optimizer.state.belief
        z = belief.to_local(optimizer.ask(400)[2:]) / np.sqrt(belief.variances)
        return np.sqrt(np.square(z).mean())

    assert wide(0.0) == pytest.approx(1.0, abs=0.1)
    assert wide(0.1) > 2.0


@pytest.mark.parametrize(("n", "kept_in_noise"), [(5, 400), (26, 400), (27, 200), (120, 240)])
def test_more_is_kept_in_noise_where_that_tells_a_whole_quadratic(rng, n, kept_in_noise):
    for noise, kept in ((0.0, max(200, 2 * n)), (1.0, kept_in_noise)):
        optimizer = klimb.Optimizer(mean=np.zeros(n), std=1.0, seed=0)
        for _ in range(11):
            theta = optimizer.ask(40)
            optimizer.tell(theta, -np.square(theta - 1).sum(1) + noise * rng.standard_normal(40))
        assert optimizer.state.kept.returns.size == kept


def test_who_says_how_much_is_kept_is_heard(rng):
    optimizer = klimb.Optimizer(klimb.auto(reuse=50), mean=np.zeros(5), std=1.0, seed=0)
    for _ in range(10):
        theta = optimizer.ask(20)
        optimizer.tell(theta, rng.standard_normal(20))
    assert optimizer.state.kept.returns.size == 50
