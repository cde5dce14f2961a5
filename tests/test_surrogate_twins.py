"""Episodes in pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from quadratics import draw_pairs

from klimb.state import Episodes
from klimb.surrogate.twins import AWAY, TWICE, find_twins, matched, run_once


def test_the_mean_is_told_from_other_samples_that_were_run_twice(rng):
    z = rng.standard_normal((3, 4))
    order, twin = find_twins(np.array([z[0], z[0], 0 * z[0], 0 * z[0], z[1], z[1], z[2], -z[2]]))
    assert set(order[np.isin(twin, TWICE)]) == {2, 3}
    assert set(order[np.isin(twin, AWAY)]) == {0, 1, 4, 5}


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
