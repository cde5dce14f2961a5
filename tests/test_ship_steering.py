"""ShipSteering against a second, plain simulation; the gate, the border, the optimum."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from klimb.tasks import ship_steering
from klimb.tasks.ship_steering import FASTEST, FIXED_START, SHIP, ShipSteering, step
from klimb.tasks.task import episode_seeds

LIMIT = math.pi / 12
SIDE = np.array([450 / 13, 450 / 13, 6 * math.pi / 16])
SHIFT = np.array([[-2, -2, -2], [-1, -2, 0], [0, -2, -1]]) / 3  # of the three tilings, in sides


def draws(count: int, seed: int = 0, std: float = 0.07) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, std, size=(count, 450))


def left_of(a, b, c) -> float:
    """Twice the area of the triangle a, b, c: positive if c lies to the left of a -> b."""
    return (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])


def segments_meet(a, b, c, d) -> bool:
    return left_of(a, b, c) * left_of(a, b, d) <= 0 and left_of(c, d, a) * left_of(c, d, b) <= 0


def plain_action(theta, state) -> float:
    weights, low = theta.reshape(3, 5, 5, 6), np.array([0, 0, -math.pi])
    total = 0.0
    for tiling in range(3):
        place = np.floor((state[:3] - (low + SHIFT[tiling] * SIDE)) / SIDE).astype(int)
        total += weights[(tiling, *np.clip(place, 0, [4, 4, 5]))]
    return total


def plain_step(state, action):
    """One control step from the facts sheet's equations: (state, reward, over, through the gate)."""
    action = np.clip(action, -LIMIT, LIMIT)
    for _ in range(3):
        x, y, heading, rate = state
        rates = np.array([3 * math.sin(heading), 3 * math.cos(heading), rate, (action - rate) / 5])
        state = state + 0.2 * rates
        state[2] = (state[2] + math.pi) % (2 * math.pi) - math.pi
        if not (0 <= state[0] <= 150 and 0 <= state[1] <= 150):
            return state, -100.0, True, False
        if segments_meet((x, y), state[:2], (100, 120), (120, 100)):
            return state, 0.0, True, True
    return state, -1.0, False, False


def plain_episode(theta, state, horizon=5000, discount=0.99):
    state, total, path = np.array(state), 0.0, [np.array(state)]
    for k in range(horizon):
        state, reward, over, through = plain_step(state, plain_action(theta, state))
        total += discount**k * reward
        path.append(state)
        if over:
            return total, through, np.array(path)
    return total, False, np.array(path)


def headed_for_the_gate(gain: float = 1.0) -> np.ndarray:
    """Weights by hand: each tile turns from its middle heading towards the gate as seen from its centre."""
    low = np.array([0, 0, -math.pi])
    weights = np.empty((3, 5, 5, 6))
    for tiling, i, j, k in np.ndindex(3, 5, 5, 6):
        x, y, heading = low + (SHIFT[tiling] + np.array([i, j, k]) + 0.5) * SIDE
        error = math.atan2(110 - x, 110 - y) - heading
        weights[tiling, i, j, k] = gain / 3 * ((error + math.pi) % (2 * math.pi) - math.pi)
    return weights.reshape(1, -1)


# Dynamics


@pytest.mark.parametrize("start", ["fixed", "random"])
def test_episodes_equal_a_plain_simulation(start):
    task, theta = ShipSteering(start), draws(40, 1)
    theta[:5] += headed_for_the_gate()
    seeds = episode_seeds(3, len(theta))
    starts = task.start_states(seeds)
    returns, success = task.evaluate(theta, seeds, return_success=True)
    assert 2 < success.sum() < 40
    for row, begin in enumerate(starts):
        expected, through, path = plain_episode(theta[row], begin)
        assert returns[row] == pytest.approx(expected, abs=1e-9)
        assert success[row] == through
        actual = task.trajectory(theta[row], seeds[row : row + 1])
        assert actual.shape == path.shape
        np.testing.assert_allclose(actual[:-1], path[:-1], atol=1e-8)
        np.testing.assert_array_equal(actual[0], begin)


@given(
    st.floats(0, 150), st.floats(0, 150), st.floats(-3.14, 3.14), st.floats(-LIMIT, LIMIT), st.floats(-1, 1)
)
@settings(max_examples=200, deadline=None)
def test_a_step_equals_the_plain_one(x, y, heading, rate, action):
    state, reward, terminated, success = step([x, y, heading, rate], action)
    expected, plain_reward, over, through = plain_step(np.array([x, y, heading, rate]), action)
    if (over or terminated) and reward != plain_reward:
        # the two may disagree only on a point that is on the border or the gate's line up to rounding
        on_border = np.abs(expected[:2, None] - [0, 150]).min()
        assert min(on_border, abs(expected[:2].sum() - 220)) < 1e-9
        return
    assert (reward, terminated, success) == (plain_reward, over, through)
    np.testing.assert_allclose(state[:2], np.clip(expected[:2], 0, 150), atol=1e-12)
    np.testing.assert_allclose(state[2:], expected[2:], atol=1e-12)


def test_stepping_by_hand_gives_the_evaluated_return():
    task, theta = ShipSteering(), headed_for_the_gate()
    state, total, k, over, success = np.array(FIXED_START), 0.0, 0, False, False
    path = [state]
    while not over:
        action = task.policy.act(theta, state[None], k)[0, 0]
        state, reward, over, success = step(state, action)
        path.append(state)
        total += 0.99**k * reward
        k += 1
    assert success
    assert task.evaluate(theta)[0] == pytest.approx(total, abs=1e-10)
    np.testing.assert_array_equal(task.trajectory(theta[0]), path)


def test_the_heading_stays_within_a_turn():
    task = ShipSteering("random", horizon=300)
    for row, theta in enumerate(draws(50, 2)):
        path = task.trajectory(theta, row)
        assert (path[:, 2] >= -math.pi).all()
        assert (path[:, 2] < math.pi).all()
        assert (abs(path[:, 3]) <= LIMIT).all()


def test_actions_are_limited():
    state = [75.0, 75.0, 0.0, 0.0]
    np.testing.assert_array_equal(step(state, 1e300)[0], step(state, LIMIT)[0])


# The gate and the border


def test_a_hand_made_policy_reaches_the_gate():
    returns, success = ShipSteering().evaluate(headed_for_the_gate(), return_success=True)
    assert success.all()
    assert returns[0] > -65
    # from random starts most ships get there; those close to a border and heading for it cannot
    theta = np.repeat(headed_for_the_gate(), 500, axis=0)
    assert ShipSteering("random").evaluate(theta, seed=1, return_success=True)[1].mean() > 0.6


@pytest.mark.parametrize(
    ("before", "heading", "through"),
    [
        ((109.9, 109.9), math.pi / 4, True),
        ((110.1, 110.1), -3 * math.pi / 4, True),  # from behind
        ((100.1, 119.7), math.pi / 4, True),
        ((99.0, 120.5), math.pi / 4, False),  # past its end
        ((121.0, 98.5), math.pi / 4, False),
        ((108.0, 108.0), math.pi / 4, False),  # 2.8 before the gate, and a step is 1.8
        ((111.0, 111.0), math.pi / 4, False),  # behind it
        ((105.0, 114.9), 3 * math.pi / 4, False),  # along it
        ((105.0, 115.0), 3 * math.pi / 4, False),
    ],
)
def test_the_gate_is_crossed_where_it_stands_and_nowhere_else(before, heading, through):
    _, reward, terminated, success = step([*before, heading, 0.0], 0.0)
    assert (success, terminated, reward) == (through, through, 0.0 if through else -1.0)


@given(t=st.floats(0.01, 0.99), fraction=st.floats(0, 1), angle=st.floats(0.1, 1.4))
@settings(max_examples=200, deadline=None)
def test_no_ship_slips_through_between_two_substeps(t, fraction, angle):
    # aim at a point of the gate so that a substep may end on its line exactly
    point = np.array([100 + 20 * t, 120 - 20 * t])
    direction = np.array([math.sin(angle), math.cos(angle)])
    begin = point - 0.6 * (1 + fraction) * direction
    assert step([*begin, angle, 0.0], 0.0)[3]


def test_leaving_the_field_costs_100_and_ends_on_the_border():
    task = ShipSteering()
    returns, success = task.evaluate(np.full((1, 450), 0.07), return_success=True)
    assert returns[0] == -100
    assert not success[0]
    assert task.trajectory(np.full(450, 0.07))[-1, 1] == 0
    state, reward, terminated, success = step([149.9, 75.0, math.pi / 2, 0.0], 0.0)
    assert (state[0], reward, terminated, success) == (150.0, -100.0, True, False)


def test_all_ships_that_leave_the_field_tie_exactly():
    returns, success = ShipSteering("random").evaluate(draws(500), seed=5, return_success=True)
    steps = [len(ShipSteering("random").trajectory(t, 5)) for t in draws(20)]
    assert len(set(steps)) > 5
    assert set(returns[~success]) == {-100.0}
    assert (returns[success] > -100).all()


# Discount and horizon


@pytest.mark.parametrize("discount", [1.0, 0.99, 0.5])
def test_returns_are_discounted_sums_of_rewards(discount):
    task, theta = ShipSteering("random", discount=discount), draws(40, 4)
    theta[:10] += headed_for_the_gate()
    seeds = episode_seeds(8, 40)
    returns, success = task.evaluate(theta, seeds, return_success=True)
    for row in range(40):
        steps = len(task.trajectory(theta[row], seeds[row : row + 1])) - 1
        rewards = [-1.0] * (steps - 1) + [0.0 if success[row] else -100.0]
        expected = math.fsum(discount**k * reward for k, reward in enumerate(rewards))
        assert returns[row] == pytest.approx(expected, abs=1e-9)


def test_an_episode_ends_at_the_horizon():
    circle = np.full(450, 0.08)
    task = ShipSteering("random", horizon=777, discount=1.0)
    seeds = np.arange(40)
    returns, success = task.evaluate(np.tile(circle, (40, 1)), seeds, return_success=True)
    assert not success[returns == -777].any()
    assert (returns == -777).any()
    row = int(np.flatnonzero(returns == -777)[0])
    assert task.trajectory(circle, seeds[row : row + 1]).shape == (778, 4)
    late = ShipSteering("random").evaluate(circle[None], seeds[row : row + 1])
    assert late[0] == pytest.approx(-100, abs=1e-9)


# The optimum


def fastest_progress(steps: int) -> tuple[float, np.ndarray]:
    """Upper bound of x + y after so many control steps from the fixed start, and actions that come close."""
    impulse = np.zeros((3 * steps, steps))  # heading before each substep, per unit of each action
    for j in range(steps):
        heading = rate = 0.0
        for k in range(3 * steps):
            impulse[k, j] = heading
            heading, rate = heading + 0.2 * rate, rate + ((k // 3 == j) - rate) * 0.2 / 5

    def lost(actions):
        ahead = math.pi / 4 + impulse @ actions  # heading minus pi/4
        return -0.6 * math.sqrt(2) * np.cos(ahead).sum(), 0.6 * math.sqrt(2) * np.sin(ahead) @ impulse

    turn_and_stop = np.array([-LIMIT] * 9 + [LIMIT] * 5 + [0.0] * (steps - 14))
    options = {"ftol": 1e-15, "maxcor": 80}  # badly conditioned: an action counts less the later it comes
    found = minimize(lost, turn_and_stop, jac=True, bounds=[(-LIMIT, LIMIT)] * steps, options=options)
    assert abs(math.pi / 4 + impulse @ found.x).max() < math.pi / 2  # where the problem is concave
    # a concave function lies below its tangent, and a linear one is largest in a corner of the box
    gap = LIMIT * abs(found.jac).sum() + found.jac @ found.x
    return -found.fun + gap, found.x


def test_the_fastest_way_to_the_gate_takes_89_steps():
    bound, _ = fastest_progress(FASTEST - 1)
    assert 219.6 < bound < 219.9
    _, actions = fastest_progress(FASTEST)
    state, k, over, success = np.array(FIXED_START), 0, False, False
    while not over:
        state, _, over, success = step(state, actions[k])
        k += 1
    assert success
    assert k == FASTEST == 89


def test_the_optimum_is_the_discounted_cost_of_the_fastest_way():
    assert ShipSteering().optimum == pytest.approx(-(1 - 0.99**88) / 0.01)
    assert ShipSteering().optimum == pytest.approx(-58.705, abs=5e-4)
    assert ShipSteering(discount=1.0).optimum == -88
    assert ShipSteering(horizon=10, discount=1.0).optimum == -10
    assert ShipSteering("random").optimum is None


# The task's contract


@pytest.mark.parametrize("start", ["fixed", "random"])
@given(count=st.integers(1, 60), cut=st.integers(0, 60), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_returns_are_bit_identical_in_any_batch_and_order(start, count, cut, seed):
    task, theta, seeds = ShipSteering(start), draws(count, seed), episode_seeds(seed, count)
    returns = task.evaluate(theta, seed)
    np.testing.assert_array_equal(task.evaluate(theta, seed), returns)
    order = np.random.default_rng(seed).permutation(count)
    np.testing.assert_array_equal(task.evaluate(theta[order], seeds[order]), returns[order])
    parts = [task.evaluate(theta[part], seeds[part]) for part in (slice(cut), slice(cut, None))]
    np.testing.assert_array_equal(np.concatenate(parts), returns)
    np.testing.assert_array_equal(task.evaluate(np.asfortranarray(theta), seed), returns)


def test_the_fixed_start_ignores_the_seed_and_the_random_one_does_not():
    theta = draws(200)
    np.testing.assert_array_equal(ShipSteering().evaluate(theta, 0), ShipSteering().evaluate(theta, 1))
    task = ShipSteering("random")
    assert (task.evaluate(theta, 0) != task.evaluate(theta, 1)).any()


def test_random_starts_fill_the_field_evenly():
    starts = ShipSteering("random").start_states(np.arange(4000))
    low, high = np.array([0, 0, -math.pi, -LIMIT]), np.array([150, 150, math.pi, LIMIT])
    unit = (starts - low) / (high - low)
    assert ((unit >= 0) & (unit <= 1)).all()
    np.testing.assert_allclose(unit.mean(axis=0), 0.5, atol=0.02)
    np.testing.assert_allclose(unit.std(axis=0), math.sqrt(1 / 12), atol=0.01)
    np.testing.assert_allclose(np.corrcoef(unit.T), np.eye(4), atol=0.06)


def test_an_action_that_is_not_finite_ends_the_episode_without_a_number():
    for action in (math.nan, math.inf):
        state, reward, terminated, success = step([75.0, 75.0, 0.0, 0.0], action)
        assert math.isnan(reward)
        assert terminated
        assert not success
        np.testing.assert_array_equal(state, [75, 75, 0, 0])


def test_huge_but_finite_parameters_are_evaluated():
    returns = ShipSteering("random").evaluate(draws(50, std=1e12), seed=2)
    assert np.isfinite(returns).all()


def test_the_task_says_what_the_search_needs():
    task = ShipSteering()
    assert task == ShipSteering("fixed")
    assert (task.n_parameters, task.initial_std) == (450, 0.07)
    assert task.evaluate(np.empty((0, 450))).shape == (0,)
    assert ShipSteering("random").evaluate(np.empty((0, 450))).shape == (0,)
    small = ShipSteering(tiles=(2, 3, 4), n_tilings=2)
    assert small.n_parameters == 48
    assert small.evaluate(np.zeros((2, 48))).shape == (2,)


def test_compiled_tiles_are_the_policys_tiles():
    task = ShipSteering("random", horizon=1, tiles=(4, 3, 7), n_tilings=4)
    theta = np.random.default_rng(0).normal(0, 0.05, size=(300, task.n_parameters))
    starts = task.start_states(np.arange(300))
    actions = task.policy.act(theta, starts)[:, 0]
    for row in range(300):
        after = step(starts[row], actions[row])[0]
        np.testing.assert_array_equal(task.trajectory(theta[row], [row])[1], after)


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"start": "middle"}, "start must be one of 'fixed', 'random', but 'middle'"),
        ({"horizon": 0}, "horizon must be a whole number of at least 1, but 0"),
        ({"discount": 1.5}, "discount must lie in"),
        ({"tiles": (5, 5)}, "tiles must be the numbers along x, y and heading"),
        ({"tiles": (5, 5, 0)}, "tiles must be a whole number of at least 1, but 0"),
        ({"n_tilings": 0}, "n_tilings"),
    ],
)
def test_wrong_settings_are_named(settings_, message):
    with pytest.raises(ValueError, match=message):
        ShipSteering(**settings_)


def test_wrong_parameters_are_named():
    with pytest.raises(ValueError, match=r"theta .*\(N, 450\), but its shape is \(2, 449\)"):
        ShipSteering().evaluate(np.zeros((2, 449)))
    with pytest.raises(ValueError, match=r"theta must be one parameter vector, shape \(450,\)"):
        ShipSteering().trajectory(np.zeros(449))
    with pytest.raises(ValueError, match="theta must be finite"):
        ShipSteering().evaluate(np.full((1, 450), np.nan))
    with pytest.raises(ValueError, match=r"state must be \(x, y, heading, rate\)"):
        step([0.0, 0.0, 0.0], 0.0)


def test_numba_waits_until_it_is_needed():
    code = "import sys, klimb.tasks.ship_steering; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert SHIP is ship_steering.SHIP
