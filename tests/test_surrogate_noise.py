"""How much of the returns is noise."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quadratics import NOT_MEASURED
from scipy import stats

from klimb.surrogate.noise import largest_share, measured_noise, no_noise, noise_share, noise_variance
from klimb.surrogate.twins import AWAY, TWICE, find_twins


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


@given(st.integers(1, 50), st.floats(0, 1), st.floats(0, 1))
def test_few_measurements_are_not_sure_that_there_is_no_noise(count, share, other):
    assert no_noise(NOT_MEASURED, 0.0) == 0
    assert no_noise(np.zeros(count), 0.0) == 1
    measured = np.ones(count)
    assert no_noise(measured, 0.0) == count / (count + 1)
    assert no_noise(measured, 1.0) == 0
    assert no_noise(np.ones(count + 1), share) >= no_noise(measured, share)
    assert no_noise(measured, min(share, other)) >= no_noise(measured, max(share, other))
