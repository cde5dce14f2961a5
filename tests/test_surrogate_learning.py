"""One update by the surrogate, on episodes made for it."""

import numpy as np
import pytest
from quadratics import NOT_MEASURED, draw_pairs, in_pairs, remembering

from klimb.gaussian import unmixed
from klimb.surrogate.learning import NATS_PER_EPISODE, NATS_PER_PARAMETER, learn
from klimb.surrogate.model import LARGEST_SKILL
from klimb.surrogate.returns import rarely_good


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
