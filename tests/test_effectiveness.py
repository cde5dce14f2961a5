"""Effectiveness measures against scipy, scikit-learn, closed forms and independent slow versions."""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial import cKDTree
from scipy.special import digamma
from scipy.stats import pearsonr
from sklearn.feature_selection import mutual_info_classif, mutual_info_regression
from sklearn.metrics import mutual_info_score

from klimb.effectiveness import (
    MEASURES,
    mutual_information,
    mutual_information_histogram,
    mutual_information_ksg,
    pearson,
    random_effectiveness,
    resolve,
)

DETERMINISTIC = [pearson, mutual_information, mutual_information_ksg, mutual_information_histogram]
SCALE_FREE = [pearson, mutual_information, mutual_information_histogram]

seeds = st.integers(0, 2**32 - 1)
measures = st.sampled_from(DETERMINISTIC)
# Few distinct values, so that ties in x, in y, in both and at the k-th distance all come up.
lattices = st.integers(2, 24).flatmap(
    lambda N: st.tuples(
        st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=N, max_size=N),
        st.lists(st.integers(0, 4), min_size=N, max_size=N),
    )
)


def claim(**strategies):
    """Hypothesis' ``given`` without its deadline: the first call of a compiled function takes seconds."""
    return lambda test: settings(deadline=None)(given(**strategies)(test))


def problem(seed, N=50, n=8):
    """Local samples and returns in which some parameters matter, linearly and not."""
    rng = np.random.default_rng(seed)
    samples = rng.standard_normal((N, n)) * np.exp(rng.standard_normal(n))
    noise = rng.standard_normal(N)
    returns = samples[:, 0] - 2 * samples[:, -1] ** 2 + np.sin(3 * samples[:, n // 2]) + 0.1 * noise
    return samples, returns


def ksg_by_tree(x, y, k=4):
    """Kraskov's first estimator, equation 8, point by point with a k-d tree; data without ties."""
    N = len(x)
    radius = cKDTree(np.c_[x, y]).query(np.c_[x, y], k + 1, p=np.inf)[0][:, -1]
    n_x = np.array([np.sum(np.abs(x - x[i]) < radius[i]) - 1 for i in range(N)])
    n_y = np.array([np.sum(np.abs(y - y[i]) < radius[i]) - 1 for i in range(N)])
    return digamma(k) + digamma(N) - np.mean(digamma(n_x + 1) + digamma(n_y + 1))


def ksg_by_open_balls(x, y, k=4):
    """Kraskov's estimator with klimb's rule for ties, from full distance matrices."""
    N = len(x)
    k = min(k, N - 1)
    dx = np.abs(x[:, None] - x)
    dy = np.abs(y[:, None] - y)
    both = np.maximum(dx, dy)
    radius = np.sort(both, axis=1)[:, k, None]  # rank 0 is the point itself
    near_x = np.where(radius > 0, dx < radius, dx == 0)
    near_y = np.where(radius > 0, dy < radius, dy == 0)
    c_xy = (near_x & near_y).sum(axis=1)
    return digamma(N) + np.mean(digamma(c_xy) - digamma(near_x.sum(axis=1)) - digamma(near_y.sum(axis=1)))


# ---------------------------------------------------------------------------------------------- pearson


@claim(seed=seeds, N=st.integers(3, 60), n=st.integers(1, 12), offset=st.floats(-100, 100))
def test_pearson_is_the_absolute_value_of_scipys(seed, N, n, offset):
    samples, returns = problem(seed, N, n)
    expected = [abs(pearsonr(x, returns + offset).statistic) for x in samples.T + offset]
    np.testing.assert_allclose(pearson(samples + offset, returns + offset), expected, rtol=0, atol=1e-12)


def test_pearson_of_a_linear_return_is_one_and_never_more():
    samples, _ = problem(1, N=7, n=2000)
    own = np.array([pearson(samples, 3 - 5 * x)[i] for i, x in enumerate(samples.T[:300])])
    np.testing.assert_allclose(own, 1.0, atol=1e-14)
    assert own.max() <= 1.0


@claim(seed=seeds, scale=st.floats(-12, 12), offset=st.floats(-1e6, 1e6), sign=st.sampled_from([-1, 1]))
def test_pearson_is_invariant_to_scale_and_shift_of_the_returns(seed, scale, offset, sign):
    samples, returns = problem(seed)
    changed = sign * 10.0**scale * (returns + offset)
    np.testing.assert_allclose(pearson(samples, changed), pearson(samples, returns), rtol=0, atol=1e-9)


@claim(seed=seeds, scales=st.lists(st.floats(-12, 12), min_size=8, max_size=8), offset=st.floats(-1e6, 1e6))
def test_pearson_is_invariant_to_scale_and_shift_of_each_parameter(seed, scales, offset):
    samples, returns = problem(seed)
    samples /= samples.std(axis=0)
    changed = (samples + offset) * 10.0 ** np.array(scales)
    np.testing.assert_allclose(pearson(changed, returns), pearson(samples, returns), rtol=0, atol=1e-8)


@pytest.mark.parametrize("measure", SCALE_FREE)
@pytest.mark.parametrize("magnitude", [1e-300, 1e-200, 1e-160, 1e150, 1e200, 1e300])
def test_extreme_magnitudes_neither_overflow_nor_underflow(measure, magnitude):
    samples, returns = problem(2)
    exact = 2.0 ** np.round(np.log2(magnitude))  # a power of two changes no digit
    expected = measure(samples, returns)
    np.testing.assert_allclose(measure(samples * exact, returns), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(measure(samples, returns * exact), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("measure", [pearson, mutual_information_histogram])
def test_columns_beyond_one_chunk_have_the_values_they_have_alone(measure):
    samples, returns = problem(3, N=50, n=5000)
    together = measure(samples, returns)
    alone = [measure(samples[:, [i]], returns)[0] for i in range(0, 5000, 37)]
    np.testing.assert_allclose(together[::37], alone, rtol=0, atol=1e-14)


@pytest.mark.parametrize("measure", [pearson, mutual_information_histogram])
def test_a_million_parameters_need_little_more_memory_than_the_result(measure):
    samples, returns = problem(4, N=50, n=1)
    many = np.broadcast_to(samples, (50, 1_000_000))  # as it would take 400 MB by itself
    tracemalloc.start()
    values = measure(many, returns)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 + 6e6
    np.testing.assert_allclose(values, measure(samples, returns)[0], rtol=0, atol=1e-14)


# ----------------------------------------------------------------------------------- mutual information


@pytest.mark.parametrize("N", [7, 15, 32, 33, 50, 64, 200, 501])
def test_mutual_information_is_scikit_learns(N):
    samples, returns = problem(N, N, n=12)
    expected = mutual_info_regression(samples, returns, n_neighbors=4, random_state=0)
    assert expected.max() > 0.05
    np.testing.assert_allclose(mutual_information(samples, returns), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("N", [3, 4])
def test_mutual_information_of_few_samples_uses_all_other_samples(N):
    samples, returns = problem(5, N, n=30)
    expected = mutual_info_regression(samples, returns, n_neighbors=N - 1, random_state=0)
    assert expected.max() > 0
    np.testing.assert_allclose(mutual_information(samples, returns), expected, rtol=0, atol=1e-8)


def test_mutual_information_is_fifty_times_as_fast_as_scikit_learns():
    samples, returns = problem(6, N=50, n=100)

    def seconds(function, repeats):
        function()
        times = []
        for _ in range(repeats):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
        return min(times)

    theirs = seconds(lambda: mutual_info_regression(samples, returns, n_neighbors=4), 4)
    ours = seconds(lambda: [mutual_information(samples, returns) for _ in range(10)], 4) / 10
    assert theirs / ours >= 50


def test_mutual_information_of_discrete_returns_is_ross_estimator():
    rng = np.random.default_rng(7)
    success = rng.integers(0, 2, 200)
    samples = rng.standard_normal((200, 4)) + success[:, None] * np.array([0.0, 0.5, 1.0, 2.0])
    expected = mutual_info_classif(samples, success, n_neighbors=4, random_state=0)
    assert expected.max() > 0.2
    # the largest gap is in standard deviations of the returns: larger than every radius within a class
    np.testing.assert_allclose(
        mutual_information(samples, success.astype(float)), expected, rtol=0, atol=1e-8
    )


@pytest.mark.parametrize("measure", [mutual_information, mutual_information_ksg])
def test_mutual_information_of_discrete_data_approaches_the_plug_in_value(measure):
    rng = np.random.default_rng(8)
    samples = rng.integers(0, 3, (1500, 3)).astype(float)
    returns = samples[:, 0] + rng.integers(0, 2, 1500)
    expected = [mutual_info_score(x, returns) for x in samples.T]
    np.testing.assert_allclose(measure(samples, returns), expected, rtol=0, atol=5e-3)


@claim(lattice=lattices)
def test_ksg_with_ties_counts_open_balls(lattice):
    samples, returns = (np.array(part, dtype=float) for part in lattice)
    expected = [
        ksg_by_open_balls(x, returns) if np.ptp(x) > 0 and np.ptp(returns) > 0 else 0.0 for x in samples.T
    ]
    np.testing.assert_allclose(mutual_information_ksg(samples, returns), expected, rtol=0, atol=1e-12)


@claim(seed=seeds, factor=st.floats(0.01, 100), offset=st.floats(-1000, 1000))
def test_rounding_does_not_break_ties(seed, factor, offset):
    rng = np.random.default_rng(seed)
    samples, returns = rng.integers(0, 12, (40, 3)) / 10, rng.integers(0, 12, 40) / 10
    exact = mutual_information(samples * 10, returns * 10)
    np.testing.assert_allclose(
        mutual_information(samples, returns * factor + factor * offset), exact, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("N", [10, 15, 50, 300])
def test_ksg_is_kraskovs_first_estimator_unscaled_and_unclipped(N):
    samples, returns = problem(N, N, n=20)
    expected = np.array([ksg_by_tree(x, returns) for x in samples.T])
    values = mutual_information_ksg(samples, returns)
    assert values.min() < 0 < values.max()
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)
    assert np.abs(mutual_information_ksg(samples, 10 * returns) - values).max() > 1e-3


@pytest.mark.parametrize("measure", [mutual_information, mutual_information_ksg])
def test_mutual_information_of_a_bivariate_normal_is_the_closed_form(measure):
    rho = np.array([0.0, 0.3, 0.6, 0.9, 0.99])
    rng = np.random.default_rng(9)
    returns = rng.standard_normal(4000)
    samples = rho * returns[:, None] + np.sqrt(1 - rho**2) * rng.standard_normal((4000, 5))
    np.testing.assert_allclose(measure(samples, returns), -0.5 * np.log(1 - rho**2), rtol=0, atol=0.04)


def test_mutual_information_finds_the_parameter_that_correlation_cannot_see():
    rng = np.random.default_rng(10)
    samples = rng.standard_normal((200, 20))
    returns = -(samples[:, 7] ** 2)
    for measure in (mutual_information, mutual_information_ksg, mutual_information_histogram):
        assert measure(samples, returns).argmax() == 7
    assert pearson(samples, returns)[7] < 0.3


@claim(seed=seeds, N=st.integers(2, 80), n=st.integers(1, 10))
def test_histogram_is_scikit_learns_score_of_numpys_histogram(seed, N, n):
    samples, returns = problem(seed, N, n)
    expected = [
        mutual_info_score(None, None, contingency=np.histogram2d(x, returns, bins=4)[0]) for x in samples.T
    ]
    np.testing.assert_allclose(mutual_information_histogram(samples, returns), expected, rtol=0, atol=1e-12)


@claim(lattice=lattices)
def test_histogram_puts_values_on_an_edge_where_numpy_puts_them(lattice):
    samples, returns = (np.array(part, dtype=float) for part in lattice)
    expected = [
        mutual_info_score(None, None, contingency=np.histogram2d(x, returns, bins=4)[0]) for x in samples.T
    ]
    np.testing.assert_allclose(mutual_information_histogram(samples, returns), expected, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------- every measure


@pytest.mark.parametrize("measure", DETERMINISTIC)
@pytest.mark.parametrize("N", [2, 3, 15, 50])
def test_a_constant_parameter_has_effectiveness_exactly_zero(measure, N):
    samples, returns = problem(11, N, n=9)
    alone = measure(samples, returns)
    constants = [0.0, 0.1, -1 / 3, 1e-300, 1e300]
    samples[:, 1:6] = constants
    samples[::2, 6] = 0.7  # constant but for the last digit
    samples[1::2, 6] = np.nextafter(0.7, 1)
    values = measure(samples, returns)
    assert np.all(values[1:7] == 0.0)
    np.testing.assert_allclose(values[[0, 7, 8]], alone[[0, 7, 8]], rtol=0, atol=1e-14)


@pytest.mark.parametrize("measure", DETERMINISTIC)
@pytest.mark.parametrize("constant", [0.0, 0.1, -45.3, 1e300])
def test_constant_returns_make_every_parameter_zero(measure, constant):
    samples, _ = problem(12)
    assert np.array_equal(measure(samples, np.full(50, constant)), np.zeros(8))


@pytest.mark.parametrize("measure", SCALE_FREE)
def test_a_small_spread_around_a_large_value_is_not_constant(measure):
    samples, returns = problem(13)
    steps = np.round(returns * 100)  # whole numbers: exact at an offset of 1e14
    expected = measure(samples, steps)
    assert expected.max() > 0.1
    np.testing.assert_allclose(measure(samples, steps + 1e14), expected, rtol=0, atol=1e-12)


@claim(lattice=lattices, measure=measures, copies=st.integers(1, 6))
def test_ties_and_copies_never_give_nan(lattice, measure, copies):
    samples, returns = (np.repeat(np.array(part, dtype=float), copies, axis=0) for part in lattice)
    values = measure(samples, returns)
    assert values.shape == (2,)
    assert np.isfinite(values).all()
    assert measure is mutual_information_ksg or (values >= 0).all()


@claim(seed=seeds, measure=measures, N=st.integers(2, 70))
def test_permuting_the_parameters_permutes_the_values(seed, measure, N):
    samples, returns = problem(seed, N)
    order = np.random.default_rng(seed).permutation(8)
    np.testing.assert_allclose(
        measure(samples[:, order], returns), measure(samples, returns)[order], rtol=0, atol=1e-14
    )


@claim(seed=seeds, measure=measures, N=st.integers(3, 70))
def test_the_order_of_the_samples_does_not_matter(seed, measure, N):
    samples, returns = problem(seed, N)
    order = np.random.default_rng(seed).permutation(N)
    np.testing.assert_allclose(
        measure(samples[order], returns[order]), measure(samples, returns), rtol=0, atol=1e-12
    )


@claim(seed=seeds, powers=st.lists(st.integers(-40, 40), min_size=9, max_size=9))
def test_mutual_information_is_invariant_to_scale_and_sign(seed, powers):
    samples, returns = problem(seed)
    factors = np.where(np.array(powers) % 2 == 0, 1, -1) * 2.0 ** np.array(powers)
    np.testing.assert_allclose(
        mutual_information(samples * factors[:8], returns * factors[8]),
        mutual_information(samples, returns),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("name", MEASURES)
def test_inputs_of_any_layout_are_read_only_to_a_measure(name):
    samples, returns = problem(14)
    expected = MEASURES[name](samples, returns, np.random.default_rng(0))
    spaced = np.repeat(np.repeat(samples, 2, axis=0), 3, axis=1)[::2, ::3]
    for layout in (samples, np.asfortranarray(samples), spaced):
        own, own_returns = layout, np.repeat(returns, 2)[::2]
        own.flags.writeable = False
        own_returns.flags.writeable = False
        values = MEASURES[name](own, own_returns, np.random.default_rng(0))
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-14)
        assert values.flags.writeable


def test_random_effectiveness_is_drawn_from_the_generator_given():
    samples, returns = problem(15, n=1000)
    values = random_effectiveness(samples, returns, np.random.default_rng(3))
    assert values.shape == (1000,)
    assert 0 <= values.min() < 0.1
    assert 0.9 < values.max() <= 1
    assert np.array_equal(values, random_effectiveness(samples, returns, np.random.default_rng(3)))
    assert not np.array_equal(values, random_effectiveness(samples, returns, np.random.default_rng(4)))


# ---------------------------------------------------------------------------------------------- resolve


def test_resolve_finds_every_measure_by_the_name_in_the_contract():
    assert resolve("pearson") is pearson
    assert resolve("mutual-information") is mutual_information
    assert resolve("mutual-information-ksg") is mutual_information_ksg
    assert resolve("mutual-information-histogram") is mutual_information_histogram
    assert resolve("random") is random_effectiveness
    assert len(MEASURES) == 5


def test_resolve_passes_a_callable_through():
    def own(samples, returns, rng):
        return np.ones(samples.shape[1])

    assert resolve(own) is own


def test_resolve_names_the_nearest_measure():
    with pytest.raises(ValueError, match="unknown effectiveness 'pearsn': did you mean 'pearson'"):
        resolve("pearsn")


@pytest.mark.parametrize("wrong", [None, 3, ["pearson"]])
def test_resolve_refuses_what_is_neither_a_name_nor_a_callable(wrong):
    with pytest.raises(ValueError, match="effectiveness must be one of 'pearson'"):
        resolve(wrong)


def test_importing_the_module_does_not_import_numba():
    code = "import sys, klimb.effectiveness; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
