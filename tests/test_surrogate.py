"""A search by the surrogate as a whole: what an optimizer makes of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import Column, gap, hardship
from scipy import stats

import klimb


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
