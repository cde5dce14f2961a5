"""The relevance surrogate: the model against closed forms, its bounds, and what an optimizer makes of it."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Column, gap, hardship
from scipy import optimize, stats

import klimb
from klimb.gaussian import unmixed
from klimb.state import Episodes
from klimb.surrogate import model
from klimb.surrogate.learning import NATS_PER_EPISODE, NATS_PER_PARAMETER, first_memory, learn
from klimb.surrogate.model import FEWEST_KEPT, LARGEST_SKILL, Fit, fit_surrogate, left_over, unknowns
from klimb.surrogate.noise import largest_share, measured_noise, no_noise, noise_share, noise_variance
from klimb.surrogate.relevance import prior_shape
from klimb.surrogate.returns import FAR, nearness, on_plateau, ranked, rarely_good, remoteness, scaled
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
from klimb.surrogate.twins import AWAY, TWICE, find_twins, matched, run_once

NOT_MEASURED = np.empty(0)


def draw_pairs(rng, pairs, n):
    z = rng.standard_normal((pairs, n))
    return np.stack([z, -z], axis=1).reshape(2 * pairs, n)


def in_pairs(count):
    return matched(np.tile([1, -1], count // 2))


def all_alone(count):
    return matched(np.zeros(count, dtype=np.int64))


def remembering(n, full, values, ranks=(0, 0, 0, 0, 0, 0)):
    """Memory of these amplitudes of values, and of ranks, of the returns."""
    return first_memory(n, full)._replace(amplitudes=np.array([values, ranks], dtype=np.float64))


def quadratic_returns(z, g, H):
    return z @ g + 0.5 * np.einsum("ij,jk,ik->i", z, H, z)


def standardised(returns):
    return scaled(returns, np.ones(len(returns)))


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
def test_pure_noise_has_no_skill_and_moves_the_mean_hardly(rng, full):
    n = 10
    prior = unmixed(np.zeros(n), np.ones(n))
    memory, steps = None, []
    for _ in range(20):
        z = draw_pairs(rng, 50, n)
        learned = learn(prior, z, rng.standard_normal(100), in_pairs(100), full, memory, 100, NOT_MEASURED)
        memory = learned.memory
        steps.append((learned.skill, learned.posterior.mean @ learned.posterior.mean))
    skill, step = np.mean(steps, axis=0)
    assert skill < 0.05
    assert step < 0.1


def test_what_is_run_twice_measures_the_noise(rng):
    z = rng.standard_normal((4, 3))
    rows = np.array([z[0], z[1], -z[1], z[0], z[2], z[3], z[3]])
    order, twin = find_twins(rows)
    pairs = {(twin[k], frozenset(order[k : k + 2])) for k in (0, 2, 4)}
    first_is_nearer = np.square(z[0]).sum() < np.square(z[3]).sum()
    near, far = (2, 4) if first_is_nearer else (4, 2)  # the nearest is taken for the mean
    assert pairs == {(1, frozenset({1, 2})), (near, frozenset({0, 3})), (far, frozenset({5, 6}))}
    np.testing.assert_array_equal(twin[order == 4], [0])
    returns = np.array([1.0, 5.0, 9.0, 4.0, 0.0, 2.0, 3.0])
    at_mean, away = (measured_noise(returns[order], twin, marks) for marks in (TWICE, AWAY))
    assert (at_mean, away) == ((9 / 2, 1 / 2) if first_is_nearer else (1 / 2, 9 / 2))
    for marks in (TWICE, AWAY):  # pairs that were cut in two
        assert measured_noise(returns, np.array([3, 2, -1, 2, 4, 1, 5]), marks).size == 0


def test_the_mean_is_told_from_other_samples_that_were_run_twice(rng):
    z = rng.standard_normal((3, 4))
    order, twin = find_twins(np.array([z[0], z[0], 0 * z[0], 0 * z[0], z[1], z[1], z[2], -z[2]]))
    assert set(order[np.isin(twin, TWICE)]) == {2, 3}
    assert set(order[np.isin(twin, AWAY)]) == {0, 1, 4, 5}


@pytest.mark.parametrize("noisy", [False, True])
def test_the_mean_is_run_twice_now_and_then_unless_there_is_no_noise(rng, noisy):
    optimizer, repeats, again = klimb.Optimizer(mean=np.zeros(5), std=1.0, seed=0), [], []
    for _ in range(16):
        theta = optimizer.ask(8)
        repeats.append(bool((theta[:2] == optimizer.mean).all()))
        again.append(bool((theta[2] == theta[3]).all()))
        mirrored = theta - optimizer.mean
        mirrored[3] *= -1 if again[-1] else 1
        np.testing.assert_allclose(mirrored[::2], -mirrored[1::2], atol=1e-12)
        optimizer.tell(theta, -np.square(theta - 1).sum(1) + noisy * rng.standard_normal(8))
    assert np.flatnonzero(repeats).tolist() == ([0, 4, 8, 12] if noisy else [0])
    assert np.flatnonzero(again).tolist() == ([4, 12] if noisy else [])  # a sample too, every other time


def test_asked_one_by_one_the_sample_that_is_run_twice_is_the_same(rng):
    together, one_by_one = (klimb.Optimizer(mean=np.ones(5), std=1.0, seed=0) for _ in range(2))
    for _ in range(4):
        theta, returns = together.ask(8), rng.standard_normal(8)
        together.tell(theta, returns)
        one_by_one.tell(one_by_one.ask(8), returns)
    theta = together.ask(8)
    np.testing.assert_array_equal(theta[2], theta[3])
    np.testing.assert_array_equal(theta, np.vstack([one_by_one.ask(1) for _ in range(8)]))


def test_what_was_run_twice_away_from_the_mean_counts_once_with_its_average(rng):
    theta, returns = rng.standard_normal((7, 3)), rng.standard_normal(7)
    twin = np.array([5, 2, 3, 4, 5, 1, -1])  # the first one has lost its twin
    once = run_once(Episodes(theta, returns, twin))
    np.testing.assert_array_equal(once.theta, np.delete(theta, 4, axis=0))
    np.testing.assert_array_equal(once.twin, [5, 2, 3, 0, 1, -1])
    others = np.delete(returns, [3, 4])
    np.testing.assert_allclose(once.returns, np.insert(others, 3, returns[3:5].mean()))
    whole = Episodes(theta, returns, np.zeros(7, dtype=np.int64))
    assert run_once(whole) is whole


def test_noise_that_grows_away_from_the_mean_is_seldom_taken_for_a_rugged_landscape():
    """At the mean there is next to none of it: only what was run twice further out tells (.8 without)."""
    rough = []
    for seed in range(8):
        rng = np.random.default_rng(seed)

        def f(theta, rng=rng):
            away = float(theta @ theta)
            return -0.01 * away + min(1.0, away / 40) * rng.standard_normal()

        found = klimb.maximize(f, mean=np.full(40, 0.05), std=1.0, episodes=216, seed=seed)
        rough.append(found.optimizer.state.rough)
    assert np.mean(rough) < 0.6


def test_with_noise_away_from_the_mean_less_is_rough(rng):
    z = draw_pairs(rng, 100, 10)
    returns = rng.standard_normal(200)
    prior = unmixed(np.zeros(10), np.ones(10))
    noise = np.full(6, 0.01)
    rough = [
        learn(prior, z, returns, in_pairs(200), True, None, 8, noise, away=away).rough
        for away in (None, np.empty(0), np.full(3, 0.01), np.full(3, 0.5), np.full(3, 1.0))
    ]
    assert rough[0] == rough[1] == rough[2] > 0.9
    assert rough[2] > rough[3] > rough[4]
    assert rough[4] < 0.2


def test_with_noise_away_from_the_mean_the_mean_is_less_bold(rng):
    """As far as what is unexplained is no noise, few episodes are taken to tell a little at least."""
    z = draw_pairs(rng, 20, 50)
    returns = z[:, 0] + 3 * rng.standard_normal(40)
    prior = unmixed(np.zeros(50), np.ones(50))
    ways = [
        np.linalg.norm(
            learn(prior, z, returns, in_pairs(40), True, None, 8, np.full(6, 0.01), away=away).posterior.mean
        )
        for away in (np.full(3, 0.01), np.full(3, 9.0))
    ]
    assert ways[1] < 0.5 * ways[0]


@pytest.mark.parametrize(("batch", "expected"), [(2, 16), (4, 8), (8, 4), (40, 4)])
def test_the_mean_is_a_small_part_of_small_batches_too(rng, batch, expected):
    optimizer, repeats = klimb.Optimizer(mean=np.zeros(5), std=1.0, seed=0), []
    for _ in range(33):
        theta = optimizer.ask(batch)
        repeats.append(bool((theta[:2] == optimizer.mean).all()))
        optimizer.tell(theta, -np.square(theta - 1).sum(1) + rng.standard_normal(batch))
    assert np.flatnonzero(repeats).tolist() == list(range(0, 33, expected))


def test_asked_one_by_one_the_mean_comes_first_as_well():
    together, one_by_one = (klimb.Optimizer(mean=np.ones(5), std=1.0, seed=0) for _ in range(2))
    theta = together.ask(4)
    np.testing.assert_array_equal(theta[:2], np.ones((2, 5)))
    assert (theta[2:] != 1).all()
    np.testing.assert_array_equal(theta, np.vstack([one_by_one.ask(1) for _ in range(4)]))


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_of_the_mean_alone_nothing_is_learned(covariance):
    """With two episodes at a time the first update has the mean only, whatever its returns."""
    optimizer = klimb.Optimizer(klimb.auto(covariance), mean=np.zeros(3), std=1.0, seed=0)
    theta = optimizer.ask(2)
    before = optimizer.belief
    assert not optimizer.tell(theta, [0.0, 1.0]).informative
    assert optimizer.belief is before
    run(optimizer, bowl, 200, 2)
    assert bowl(optimizer.mean[None])[0] > 1e-3 * bowl(np.zeros((1, 3)))[0]


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


@pytest.mark.parametrize("full", [True, False])
def test_ranks_are_followed_where_values_explain_nothing(rng, full):
    n, N = 5, 120
    prior, z, slope = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n), np.arange(n) / 30**0.5
    lucky = z @ slope + 100 * (rng.random(N) < 0.1)
    memory = None
    for _ in range(5):  # until the amplitudes have settled
        learned = learn(prior, z, lucky, in_pairs(N), full, memory, 8, np.zeros(1))
        memory = learned.memory
    assert learned.skill > 0.3
    assert slope @ learned.posterior.mean > 0.8 * np.linalg.norm(learned.posterior.mean)
    by_value = learn(prior, z, lucky, in_pairs(N), full, None, 8, np.full(1, 1e-9))
    assert by_value.skill < 0.05


@pytest.mark.parametrize("full", [True, False])
def test_ranks_are_not_asked_where_values_explain_returns_nor_in_noise_nor_on_a_plateau(rng, full):
    n, N = 4, 60
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n)
    lucky = z[:, 0] + 100 * (rng.random(N) < 0.1)

    def asked(returns, noise):
        return learn(prior, z, returns, in_pairs(N), full, None, 8, noise).memory.amplitudes[1].any()

    assert asked(lucky, np.zeros(1))
    assert not asked(lucky, np.ones(1))
    assert not asked(np.where(z[:, 1] > 1, lucky, lucky.min()), np.zeros(1))
    assert not asked(-np.square(z).sum(1), np.zeros(1))


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


def told_of_lucky_ones(rng, full, noise, rare=True, look=False):
    """An update from 200 returns of which a tenth are lucky, with noise as a share of their variance."""
    n, N = 30, 200
    z = draw_pairs(rng, N // 2, n)
    returns = z[:, 0] + 8 * (rng.random(N) < 0.1)
    assert rarely_good(returns)
    amplitudes = [1e-3, 1, 1, 1, 1, 0]
    memory = remembering(n, full, amplitudes, amplitudes)
    measured = np.full(8, noise * float(returns.var()))
    prior = unmixed(np.zeros(n), np.ones(n))
    return learn(prior, z, returns, in_pairs(N), full, memory, 8, measured, rare=rare, look=look)


@pytest.mark.parametrize("full", [True, False])
def test_where_good_returns_are_rare_the_mean_goes_far_and_the_belief_closes_in_slowly(full):
    bold, usual = (told_of_lucky_ones(np.random.default_rng(1), full, 0.0, rare) for rare in (True, False))
    far, near = (float(np.linalg.norm(each.posterior.mean)) for each in (bold, usual))
    assert far > 10 * near
    assert far**2 / 2 > 4.0  # what an update without skill may take but for this step
    closed = [-0.5 * float(np.log(each.posterior.variances).sum()) for each in (bold, usual)]
    assert closed[0] == pytest.approx(0.3 * closed[1], rel=0.1)


@pytest.mark.parametrize("full", [True, False])
def test_it_is_bold_in_noise_as_far_as_noise_is_not_what_is_unexplained(full):
    learned = [told_of_lucky_ones(np.random.default_rng(1), full, noise) for noise in (0.0, 0.3, 1.0)]
    assert all(each.memory.amplitudes[1].any() for each in learned)  # ranks are followed
    assert all(each.noise == 0 for each in learned)  # and no samples drawn wider
    nats = [float(np.square(each.posterior.mean).sum()) / 2 for each in learned]
    assert nats[1] < 0.7 * nats[0]
    assert nats[2] < 0.1 * nats[1]


@pytest.mark.parametrize("full", [True, False])
def test_a_bold_look_takes_ruggedness_for_no_noise_and_stays_as_wide(full):
    sure, look = (
        told_of_lucky_ones(np.random.default_rng(1), full, noise, look=look)
        for noise, look in ((0.0, False), (1.0, True))
    )
    np.testing.assert_allclose(look.posterior.mean, sure.posterior.mean, rtol=0.2, atol=0.02)
    drop = [-0.5 * float(np.log(each.posterior.variances).sum()) for each in (sure, look)]
    assert abs(drop[1]) < 0.1 * drop[0]


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


def test_nor_is_it_bold_on_a_plateau_or_where_values_explain_returns(rng):
    n, N = 5, 100
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n)
    for returns in (np.where(z[:, 0] > 1.5, 1.0, 0.0), -np.square(z - 1).sum(1)):
        bold, usual = (
            learn(prior, z, returns, in_pairs(N), True, None, 8, np.zeros(1), rare=rare).posterior
            for rare in (True, False)
        )
        np.testing.assert_array_equal(bold.mean, usual.mean)
        np.testing.assert_array_equal(bold.variances, usual.variances)


@pytest.mark.parametrize("full", [True, False])
def test_a_curvature_that_noise_hides_closes_nothing_in(rng, full):
    n = 4
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, 100, n)
    returns = -0.1 * np.square(z).sum(1) + rng.standard_normal(200)
    narrow, wide = (
        learn(prior, z, returns, in_pairs(200), full, None, 8, np.array([noise])).posterior
        for noise in (0.0, 1.0)
    )
    assert abs(wide.entropy - prior.entropy) < 0.5
    assert wide.entropy > narrow.entropy + 0.5


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("curvature", [0.2, 0.4])
def test_in_noise_the_belief_closes_in_as_far_as_new_episodes_tell(rng, full, curvature):
    """Against Bayes: N episodes with the noise 1 tell the optimum with the precision N h^2."""
    n, N = 2, 2000
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n)
    returns = -curvature / 2 * np.square(z).sum(1) + rng.standard_normal(N)
    memory = None
    for _ in range(5):  # until the amplitudes have settled
        learned = learn(prior, z, returns, in_pairs(N), full, memory, 8, np.ones(1))
        memory = learned.memory
    np.testing.assert_allclose(1 / learned.posterior.variances, 1 + 8 * curvature**2, rtol=0.2)


@pytest.mark.parametrize("full", [True, False])
def test_in_noise_the_belief_opens_where_the_mean_leaves_it(rng, full):
    n, N = 4, 200
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n)
    noise = rng.standard_normal(N)
    steep, flat = (
        learn(prior, z, slope * z[:, 0] + noise, in_pairs(N), full, None, 8, np.ones(6)).posterior
        for slope in (10.0, 0.0)
    )
    assert steep.entropy > prior.entropy + 0.5
    assert abs(flat.entropy - prior.entropy) < 0.1


def run_in_noise(h, episodes, seed):
    """Minimise sum h x^2 of rotated x, from a distance of 1 in each, with noise of a hundredth of the gap."""
    n, rng = len(h), np.random.default_rng(seed)
    rotation = np.linalg.qr(rng.standard_normal((n, n)))[0]
    optimizer = klimb.Optimizer(mean=np.zeros(n), std=1.0, seed=seed)
    for _ in range(episodes // 8):
        theta = optimizer.ask(8)
        quiet = -np.square((theta - rotation.sum(1)) @ rotation) @ h
        optimizer.tell(theta, quiet + 0.01 * h.sum() * rng.standard_normal(8))
    return optimizer.belief, rotation


@pytest.mark.parametrize("seed", [0, 1])
def test_in_noise_the_optimum_lies_where_the_belief_says(seed):
    """It is what is known of the optimum: were that right, its squared distance would be 1 on average."""
    belief, rotation = run_in_noise(np.ones(20), 1600, seed)
    distance = belief.to_local(rotation.sum(1)[None])[0] / np.sqrt(belief.variances)
    assert 0.1 < np.square(distance).mean() < 10


def test_in_noise_flat_directions_are_followed_once_steep_ones_are_known():
    h = 1e4 ** (np.arange(10) / 9)
    left = []
    for seed in range(1, 5):
        belief, rotation = run_in_noise(h, 1600, seed)
        left.append(np.square((belief.mean - rotation.sum(1)) @ rotation) @ h / h.sum())
    assert np.mean(left) < 0.004


@pytest.mark.parametrize("seed", [0, 1, 5])
def test_in_noise_directions_that_few_episodes_tell_do_not_close_in_with_the_others(seed):
    """Four of 20, a million times steeper one way than another; noise is larger than what is left by far."""
    options = {"n_parameters": 20, "n_effective": 4, "rotated": True}
    noisy, quiet = Column("ellipsoid", options, noisy=True).tasks()
    found = klimb.maximize(noisy, mean=np.zeros(20), std=noisy.initial_std, episodes=500, seed=seed)
    assert -quiet.evaluate(found.optimizer.mean[None])[0] < 0.002 * gap(quiet)


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
def test_nothing_closes_in_while_all_is_explained_and_the_way_is_long(rng, full):
    """Amplitudes of curvature that is long gone would have the belief shrink far from the optimum."""
    n = 4
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, 100, n)
    stale = remembering(n, full, [1e-3, 1e3, 1e3, 1e-6, 1e-6, 1e3])

    def entropy_and_step(distance):
        returns = -np.square(z - distance).sum(1)
        learned = learn(prior, z, returns / returns.std(), in_pairs(200), full, stale, 8, np.zeros(1))
        assert learned.skill == LARGEST_SKILL
        return learned.posterior.entropy - prior.entropy, np.linalg.norm(learned.posterior.mean)

    near, step = entropy_and_step(1.0)
    np.testing.assert_allclose(step, 2.0, rtol=0.1)
    assert near < -2.0
    far, step = entropy_and_step(1000.0)
    assert step > 40.0
    assert far > -0.1


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


@pytest.mark.parametrize("full", [True, False])
def test_episodes_of_a_belief_long_gone_do_not_hide_what_is_left(rng, full):
    """Of a bowl: 60 episodes as wide as the belief, and 140 from 3000 times as far."""
    n = 5
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, 100, n)
    z[:140] *= 3000
    returns = -np.square(z - 1).sum(1)
    memory = None
    for _ in range(10):  # until the amplitudes have settled
        learned = learn(prior, z, returns, in_pairs(200), full, memory, 8, np.zeros(1))
        memory = learned.memory
    np.testing.assert_allclose(learned.posterior.mean, 1, rtol=0.2)


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


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("seed", range(3))
def test_a_million_times_steeper_in_one_direction_than_in_another(covariance, seed):
    """Closing in on all directions alike had left such bowls at a thousandth of the first gap."""
    best, steepness = np.random.default_rng(seed).standard_normal(20), 10.0 ** np.linspace(0, 6, 20)
    optimizer = klimb.Optimizer(klimb.auto(covariance), mean=np.zeros(20), std=1.0, seed=seed)
    for _ in range(50):
        theta = optimizer.ask(8)
        optimizer.tell(theta, -np.square(theta - best) @ steepness)
    assert np.square(optimizer.mean - best) @ steepness < 1e-8 * (np.square(best) @ steepness)


def test_flat_directions_that_closed_in_with_steep_ones_are_opened_again():
    """Four of 20 directions matter, turned against the parameters; crept along, 1e-8 of the gap was left."""
    left = []
    for seed in range(12):
        best = np.random.default_rng(seed).standard_normal(20)
        axes = stats.ortho_group.rvs(20, random_state=seed)[:, :4] * 10.0 ** np.arange(4)
        optimizer = klimb.Optimizer(mean=np.zeros(20), std=1.0, seed=seed)
        for _ in range(90):
            theta = optimizer.ask(8)
            optimizer.tell(theta, -np.square((theta - best) @ axes).sum(1))
        left.append(np.square((optimizer.mean - best) @ axes).sum() / np.square(best @ axes).sum())
    assert np.log10(left).mean() < -10


@given(st.integers(0, 10**6), st.floats(1e-3, 50), st.floats(0, 50), st.floats(0.25, 3))
def test_the_belief_opens_along_a_way_that_is_gone_twice(seed, before, now, far):
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.standard_normal((5, 5)))
    ahead, factor = keeps_going(before * axes[0], now * axes[0] + rng.standard_normal() * axes[1], far)
    assert factor == pytest.approx(min(max(1.0, min(before, now) / 2), 2 ** (far / 2)))
    np.testing.assert_allclose(ahead, axes[0], atol=1e-12)
    assert keeps_going(before * axes[0], -now * axes[0], far)[1] == 1.0
    assert keeps_going(np.zeros(5), now * axes[0], far)[1] == 1.0


def test_what_opens_along_the_way_is_that_direction_alone_and_within_the_bound(rng):
    n, z = 4, draw_pairs(rng, 100, 4)
    prior, returns = unmixed(np.zeros(n), np.ones(n)), z @ np.array([0.0, 1.0, 0.0, 0.0])
    posterior = {}
    for length in (0.0, 10.0):
        memory = remembering(n, True, [1.0, 1e-9, 1e-9, 1e-9, 1e-9, 1e-9])
        memory = memory._replace(way=np.eye(n)[1] * length)
        learned = learn(prior, z, returns, in_pairs(200), True, memory, 8, np.zeros(1))
        posterior[length] = learned.posterior
        assert learned.posterior.kl(prior) <= 4 / (1 - learned.skill)
    ratio = posterior[10.0].covariance / posterior[0.0].covariance
    np.testing.assert_allclose(np.diag(ratio), [1, 2, 1, 1], rtol=1e-6)
    np.testing.assert_array_equal(posterior[10.0].mean, posterior[0.0].mean)
    assert learned.memory.way @ posterior[10.0].rotation.T @ np.eye(n)[1] > 10  # as far as it went


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.booleans())
def test_the_prior_is_that_of_what_is_relevant_and_something_for_all(seed, n, full):
    rng = np.random.default_rng(seed)
    W = np.diag(rng.dirichlet(np.ones(n)))
    if full and n > 1:
        turn = stats.ortho_group.rvs(n, random_state=rng)
        W = turn @ W @ turn.T
    V = prior_shape(W if full else np.diag(W))
    V = V if full else np.diag(V)
    np.testing.assert_allclose(V, 0.2 * W + 0.8 * np.eye(n) / n, atol=1e-15)
    assert np.trace(V) == pytest.approx(1)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("seed", range(3))
def test_parameters_that_matter_are_told_from_many_that_do_not(covariance, seed):
    """Three of 60 parameters: after 400 episodes, or once solved, they are more relevant than others."""
    optimizer = klimb.Optimizer(klimb.auto(covariance), mean=np.zeros(60), std=1.0, seed=seed)
    told = []
    while len(told) < 50 and optimizer.attempt == 0:
        theta = optimizer.ask(8)
        told.append(optimizer.tell(theta, -np.square(theta[:, [3, 30, 50]] - 1).sum(1)).relevance)
    relevance = np.mean(told, axis=0)
    assert len(told) > 20
    assert set(np.argsort(relevance)[-3:]) == {3, 30, 50}
    assert relevance[[3, 30, 50]].sum() > 0.8


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


def test_noise_is_a_share_of_what_is_unexplained():
    def share(noise, unexplained, spread):
        return noise_share(noise_variance(noise, spread), unexplained)

    assert share(NOT_MEASURED, 0.5, 2.0) == 0
    assert share(np.array([0.2, 0.6]), 0.5, 2.0) == pytest.approx(0.4 / (0.5 * 2.0**2))
    assert share(np.array([1e308, 1e308]), 0.5, 2.0) == 1  # no warning either
    assert share(np.array([np.inf, 0.0]), 1e-300, 1e-150) == 1


@given(st.integers(1, 50), st.floats(0, 1))
def test_closing_in_takes_the_noise_two_standard_errors_larger(count, share):
    measured = np.ones(count)
    error = math.sqrt(float(stats.chi2(count).var())) / count  # of the mean of so many squares
    assert largest_share(measured, share) == pytest.approx(min(1.0, share * (1 + 2 * error)))
    assert largest_share(NOT_MEASURED, 0.0) == 0


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


@pytest.mark.parametrize("n", [5, 20])
def test_returns_that_are_all_noise_neither_widen_the_belief_nor_carry_it_off(n):
    gone = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        optimizer, widths = klimb.Optimizer(mean=np.zeros(n), std=1.0, seed=seed), []
        for _ in range(100):
            theta = optimizer.ask(8)
            optimizer.tell(theta, rng.standard_normal(8))
            widths.append(optimizer.belief.std.max())
        assert max(widths) < 2
        assert widths[-1] > 0.01  # there is nothing to close in on
        gone.append(float(optimizer.mean @ optimizer.mean) / n)
    assert max(gone) < 2
    assert math.sqrt(np.mean(gone)) < 1


@given(st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_few_measurements_are_not_sure_that_there_is_no_noise(count, share, other):
    assert no_noise(NOT_MEASURED, 0.0) == 0
    assert no_noise(np.zeros(count), 0.0) == 1
    measured = np.ones(count)
    assert no_noise(measured, 0.0) == count / (count + 1)
    assert no_noise(measured, 1.0) == 0
    assert no_noise(np.ones(count + 1), share) >= no_noise(measured, share)
    assert no_noise(measured, min(share, other)) >= no_noise(measured, max(share, other))


@pytest.mark.parametrize("full", [True, False])
def test_few_episodes_of_many_parameters_are_followed_further_where_there_is_no_noise(rng, full):
    n, N = 300, 26
    slope = rng.standard_normal(n)
    prior, z = unmixed(np.zeros(n), np.ones(n)), draw_pairs(rng, N // 2, n)
    climbed = {}
    for noise in (0.0, 1e9):
        learned = learn(prior, z, z @ slope, in_pairs(N), full, None, N, np.array([noise]))
        assert learned.skill < 0.3
        step = learned.posterior.mean
        bound = max(NATS_PER_EPISODE * N, NATS_PER_PARAMETER * (n / N - 1)) if noise == 0 else 0.5
        assert step @ step <= 2 * bound * (1 + 1e-6)
        climbed[noise] = step @ slope
    assert climbed[0.0] > 2 * climbed[1e9] > 0


def test_a_plateau_is_where_half_of_the_returns_are_the_worst():
    assert on_plateau(np.array([-100.0, -100.0, -60.0, -59.0]))
    assert not on_plateau(np.array([-100.0, -100.0, -60.0, -59.0, -58.0]))
    assert not on_plateau(np.array([-60.0, -60.0, -100.0]))  # the best may be shared by any number


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


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_success_in_a_hundred_is_found_again_and_made_sure_of(seed, covariance):
    axes = np.linalg.qr(np.random.default_rng(seed).standard_normal((60, 3)))[0]

    def succeed(theta):
        return 1.0 * (np.abs(theta @ axes - 1.2) < 0.6).all(-1)

    assert 0.005 < succeed(np.random.default_rng(1).standard_normal((4000, 60))).mean() < 0.02
    search = klimb.auto(covariance)
    result = klimb.maximize(succeed, search, mean=np.zeros(60), std=1.0, episodes=800, seed=seed)
    assert succeed(result.optimizer.sample(np.random.default_rng(2), 500)).mean() > 0.95


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("seed", [0, 1])
def test_successes_around_a_hole_are_not_averaged_into_it(seed, covariance):
    """Their average fails, so that to close in on it does not pay."""
    axes = np.linalg.qr(np.random.default_rng(seed).standard_normal((60, 3)))[0]

    def succeed(theta):
        distance = np.linalg.norm(theta @ axes - [1.5, 0.0, 0.0], axis=-1)
        return 1.0 * ((distance > 1.0) & (distance < 1.3))

    search = klimb.auto(covariance)
    result = klimb.maximize(succeed, search, mean=np.zeros(60), std=1.0, episodes=1000, seed=seed)
    assert succeed(result.optimizer.sample(np.random.default_rng(2), 500)).mean() > 0.95


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


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 5))
def test_twins_are_found_in_any_order_and_others_are_left_alone(seed, N, n):
    rng = np.random.default_rng(seed)
    z = draw_pairs(rng, (N + 1) // 2, n)[:N] * 10.0 ** rng.uniform(-6, 6)
    shuffled = z[rng.permutation(N)]
    order, twin = find_twins(shuffled)
    assert sorted(order) == list(range(N))
    twins = matched(twin)
    assert twins.first.size == N // 2
    assert twins.alone.size == N % 2
    ordered = shuffled[order]
    np.testing.assert_array_equal(ordered[twins.first], -ordered[twins.second])


def test_a_pair_cut_in_two_is_two_that_are_alone():
    twins = matched(np.array([-1, 1, -1, 0, 1]))
    np.testing.assert_array_equal(twins.first, [1])
    np.testing.assert_array_equal(twins.alone, [0, 3, 4])


def bowl(theta):
    return -np.square(theta[:, :3] - 0.5).sum(1)


def run(optimizer, f, updates, batch=8):
    for _ in range(updates):
        theta = optimizer.ask(batch)
        info = optimizer.tell(theta, f(theta))
    return info


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
@pytest.mark.parametrize("batch", [2, 3, 8, 31, 250])
def test_any_number_of_episodes_at_a_time_will_do(batch, covariance):
    optimizer = klimb.Optimizer(klimb.auto(covariance), mean=np.zeros(12), std=0.5, seed=0)
    run(optimizer, bowl, max(4, 600 // batch), batch)
    assert bowl(optimizer.mean[None])[0] > -1e-2


@pytest.mark.parametrize(("batch", "n", "condition"), [(4, 20, 1e6), (50, 100, 1.0)])
def test_how_far_it_gets_does_not_hang_on_the_episodes_per_update(batch, n, condition, rng):
    stretch = np.append(condition ** np.linspace(0, 1, 10), np.zeros(n - 10))

    def f(theta):
        return -np.square(theta - 1) @ stretch

    optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(n), std=0.5, seed=0)
    run(optimizer, f, 1000 // batch, batch)
    assert f(optimizer.sample(rng, 200)).mean() / f(np.zeros((1, n)))[0] < 1e-5


@given(st.integers(2, 2000), st.integers(1, 10**5))
def test_an_update_goes_as_far_as_its_episodes_but_not_too_far(n_new, n):
    far = pace(n_new, n)
    assert far == pytest.approx(min(n_new / 8, max(1.0, np.sqrt(n) / 4)))
    assert far * 2 / np.sqrt(n) <= max(0.5, 2 / np.sqrt(n)) * (1 + 1e-12)
    assert pace(8, n) == 1.0


def test_what_matters_is_found_under_the_names_of_the_parameters():
    def f(theta):
        return -10 * np.square(theta[:, 7] - 1) - np.square(theta[:, 2] + theta[:, 4])

    optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(20), std=0.5, seed=0)
    info = run(optimizer, f, 20)
    assert set(np.argsort(info.relevance)[-3:]) == {2, 4, 7}
    assert info.relevance.sum() == pytest.approx(1)
    assert info.relevance[[2, 4, 7]].sum() > 0.5
    assert info.effectiveness.shape == (20,)


@given(st.integers(0, 10**6), st.sampled_from([2, 6, 8, 40]), st.sampled_from([5, 30]))
def test_the_divergence_stays_within_what_skill_and_episodes_allow(seed, batch, n):
    rng = np.random.default_rng(seed)
    optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(n), std=1.0, seed=seed)
    steps = min(batch / 8, max(1.0, np.sqrt(n) / 4))
    for _ in range(6):
        theta = optimizer.ask(batch)
        returns = bowl(theta) * 10.0 ** rng.uniform(-3, 3) + rng.standard_normal(batch)
        info = optimizer.tell(theta, returns)
        if info.informative:  # the mean alone is not
            assert info.kl <= 4 * steps**2 / (1 - info.skill) * (1 + 1e-6)


def test_scale_and_offset_of_the_returns_do_not_matter():
    runs = []
    for scale, offset in ((1.0, 0.0), (2.0**40, 0.0), (2.0**-40, 0.0), (1.0, 64.0)):
        optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(6), std=0.5, seed=0)
        run(optimizer, lambda theta, a=scale, b=offset: a * bowl(theta) + b, 1, 60)
        runs.append(optimizer.mean)
    for other in runs[1:]:
        np.testing.assert_allclose(other, runs[0], atol=1e-6)


def test_a_lost_twin_still_counts_and_order_does_not():
    a, b, c = (klimb.Optimizer(klimb.auto(), mean=np.zeros(4), std=0.5, seed=0) for _ in range(3))
    theta = a.ask(12)
    returns = bowl(theta)
    a.tell(theta, returns)
    order = np.random.default_rng(0).permutation(12)
    b.tell(theta[order], returns[order])
    np.testing.assert_allclose(a.mean, b.mean, atol=1e-9)
    lost = returns.copy()
    lost[3] = np.nan
    info = c.tell(theta, lost)
    assert (info.n_used, info.n_failed) == (11, 1)
    assert info.effective_sample_size == 11
    assert not np.allclose(c.mean, a.mean)


def test_a_memory_of_another_form_is_learned_anew(tmp_path):
    optimizer = klimb.Optimizer(mean=np.zeros(5), std=1.0, seed=0)
    run(optimizer, bowl, 5)
    state = optimizer._state
    optimizer._state = replace(state, memory=(state.memory[0], *state.memory[2:]))
    optimizer.save(tmp_path / "earlier.npz")
    optimizer = klimb.Optimizer.load(tmp_path / "earlier.npz")
    run(optimizer, bowl, 1)
    assert len(optimizer._state.memory) == len(state.memory)
    assert np.array_equal(optimizer._state.start.std, state.start.std)


def test_episodes_from_elsewhere_warm_start_the_search(rng):
    optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(6), std=0.3, seed=0)
    old = rng.uniform(-1, 1, (300, 6))
    optimizer.tell(old, bowl(old))
    assert bowl(optimizer.mean[None])[0] > -0.3
    many = rng.uniform(-1, 1, (5000, 6))  # more than it can look at: the nearest count
    info = optimizer.tell(many, bowl(many))
    assert info.n_used == 5000
    assert len(optimizer.state.kept.returns) == 200


def test_many_parameters_take_a_diagonal_covariance():
    optimizer = klimb.Optimizer(klimb.auto(), mean=np.zeros(3000), std=0.3, seed=0)
    assert optimizer.algorithm.covariance == "diagonal"
    start = bowl(optimizer.mean[None])[0]
    info = run(optimizer, bowl, 15, 20)
    assert bowl(optimizer.mean[None])[0] > start + 0.1
    assert optimizer.belief.mixed.size == 0
    assert info.relevance.shape == (3000,)


def test_settings_that_mean_nothing_to_it_are_refused():
    with pytest.raises(ValueError, match="unknown setting 'epsilon' of auto"):
        klimb.make_algorithm("auto", epsilon=1.0)
    with pytest.raises(ValueError, match="covariance must be one of"):
        klimb.auto("round")
    with pytest.raises(ValueError, match="covariance must be one of"):
        klimb.creps(covariance=None)
    with pytest.raises(ValueError, match="reuse must be a whole number"):
        klimb.auto(reuse=-1)


def test_a_study_says_what_matters_by_name_and_resumes_to_the_bit(tmp_path):
    names = ["hip", "knee", "toe", "ear", "nose", "tail"]
    start = {"names": names, "mean": 0.0, "std": 0.5, "seed": 0}
    with klimb.Study.create(tmp_path / "a.db", klimb.auto(), **start) as study:
        for _ in range(30):
            episodes = study.ask_many(8)
            theta = np.array([episode.parameters for episode in episodes])
            study.tell_many(episodes, -9 * np.square(theta[:, 3] - 1) - np.square(theta[:, 0]))
        status = study.status()
        assert (study.settings.batch, status.updates) == (8, 30)
        assert {name for name, _ in status.matters[:2]} == {"ear", "hip"}
        mean = study.optimizer.mean
    plain = klimb.Optimizer(klimb.auto(), mean=np.zeros(6), std=0.5, seed=0)
    run(plain, lambda theta: -9 * np.square(theta[:, 3] - 1) - np.square(theta[:, 0]), 30)
    np.testing.assert_allclose(plain.mean, mean, atol=1e-6)


def test_adverse_returns_do_no_harm():
    assert hardship(400, seed=1) == 0
