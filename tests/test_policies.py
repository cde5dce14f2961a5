"""Policies: stateless, batched, and a row's actions are its own."""

from __future__ import annotations

import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from klimb.policies import DMP, POLICIES, Linear, ProMP, Tiles, make_policy, observation_statistics

SHIP_LOW, SHIP_HIGH = (0.0, 0.0, -math.pi), (150.0, 150.0, math.pi)

EXAMPLES = {
    "linear": Linear(11, 3),
    "linear-bias": Linear(5, 2, bias=True, mean=np.arange(5.0), std=np.arange(1.0, 6.0)),
    "tiles": Tiles(SHIP_LOW, SHIP_HIGH),
    "tiles-columns": Tiles((0, -1), (1, 1), (3, 4), n_tilings=4, n_actions=3, columns=(2, 0)),
    "promp": ProMP(3, 30, 120),
    "dmp": DMP(2, 7, 40, start=(0.1, -0.2)),
    "dmp-goal": DMP(3, 5, 25, goal=1.5, duration=12.0),
}
WIDTHS = {"linear": 11, "linear-bias": 5, "tiles": 3, "tiles-columns": 4}
OPEN_LOOP = [name for name in EXAMPLES if name not in WIDTHS]


def batch(name: str, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=(count, EXAMPLES[name].n_parameters))
    return theta, rng.normal(size=(count, WIDTHS.get(name, 4)))


# All of them


@pytest.mark.parametrize("name", EXAMPLES)
def test_actions_have_the_promised_shape_and_leave_the_inputs_alone(name):
    policy = EXAMPLES[name]
    theta, observations = batch(name, 6)
    kept = theta.copy(), observations.copy()
    actions = policy.act(theta, observations, 3)
    assert actions.shape == (6, policy.n_actions)
    assert np.isfinite(actions).all()
    np.testing.assert_array_equal(theta, kept[0])
    np.testing.assert_array_equal(observations, kept[1])


@pytest.mark.parametrize("name", EXAMPLES)
@given(count=st.integers(1, 40), cut=st.integers(0, 40), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_row_does_not_depend_on_its_batch(name, count, cut, seed):
    policy = EXAMPLES[name]
    theta, observations = batch(name, count, seed)
    order = np.random.default_rng(seed).permutation(count)
    actions = policy.act(theta, observations, 3)
    np.testing.assert_array_equal(policy.act(theta[order], observations[order], 3), actions[order])
    parts = [policy.act(theta[part], observations[part], 3) for part in (slice(cut), slice(cut, None))]
    np.testing.assert_array_equal(np.concatenate(parts), actions)
    single = [policy.act(theta[k : k + 1], observations[k : k + 1], 3)[0] for k in range(count)]
    np.testing.assert_array_equal(single, actions)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_layout_in_memory_does_not_matter(name):
    policy = EXAMPLES[name]
    theta, observations = batch(name, 9)
    actions = policy.act(theta, observations, 3)
    strided = np.repeat(theta, 2, axis=0)[::2], np.repeat(observations, 2, axis=0)[::2]
    np.testing.assert_array_equal(policy.act(*strided, 3), actions)
    fortran = np.asfortranarray(theta), np.asfortranarray(observations)
    np.testing.assert_array_equal(policy.act(*fortran, 3), actions)


@pytest.mark.parametrize("name", EXAMPLES)
def test_policies_are_settings_that_compare_hash_and_pickle(name):
    policy = EXAMPLES[name]
    again = pickle.loads(pickle.dumps(policy))
    assert again == policy
    assert hash(again) == hash(policy)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.n_actions_of_someone = 1
    theta, observations = batch(name, 4)
    np.testing.assert_array_equal(again.act(theta, observations, 2), policy.act(theta, observations, 2))


@pytest.mark.parametrize("name", EXAMPLES)
def test_wrong_shapes_are_named(name):
    policy = EXAMPLES[name]
    theta, observations = batch(name, 4)
    with pytest.raises(ValueError, match=rf"theta.*\(N, {policy.n_parameters}\)"):
        policy.act(theta[:, 1:], observations, 0)
    if name in WIDTHS:
        with pytest.raises(ValueError, match="observations must have one row per row of theta, 4"):
            policy.act(theta, observations[:3], 0)
        with pytest.raises(ValueError, match="observations"):
            policy.act(theta, observations[:, :1], 0)


@pytest.mark.parametrize("name", OPEN_LOOP)
def test_open_loop_actions_are_the_trajectory_step_by_step(name):
    policy = EXAMPLES[name]
    theta, observations = batch(name, 5)
    movement = policy.trajectory(theta)
    assert movement.shape == (5, policy.horizon, policy.n_actions)
    steps = [policy.act(theta, observations, step) for step in range(policy.horizon)]
    np.testing.assert_array_equal(np.stack(steps, axis=1), movement)
    np.testing.assert_array_equal(policy.act(theta, None, 1), steps[1])
    for step in (-1, policy.horizon):
        with pytest.raises(ValueError, match=rf"step must lie in 0..{policy.horizon - 1}, but {step}"):
            policy.act(theta, observations, step)


@pytest.mark.parametrize("name", OPEN_LOOP)
@given(count=st.integers(1, 20), cut=st.integers(0, 20), seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_a_trajectory_does_not_depend_on_its_batch(name, count, cut, seed):
    policy = EXAMPLES[name]
    theta, _ = batch(name, count, seed)
    parts = [policy.trajectory(theta[:cut]), policy.trajectory(theta[cut:])]
    np.testing.assert_array_equal(np.concatenate(parts), policy.trajectory(theta))


# By name


def test_policies_are_made_by_name():
    assert make_policy("promp", n_joints=3, n_bases=30, horizon=120) == ProMP(3, 30, 120)
    assert set(POLICIES) == {"linear", "tiles", "promp", "dmp"}


def test_names_and_settings_that_do_not_exist_raise_with_the_nearest():
    with pytest.raises(ValueError, match="unknown policy 'pormp': did you mean 'promp'"):
        make_policy("pormp")
    with pytest.raises(ValueError, match="'promp' has no setting 'n_basis': did you mean 'n_bases'"):
        make_policy("promp", n_joints=3, n_basis=30, horizon=120)
    with pytest.raises(ValueError, match="'promp' needs a value for n_bases, horizon"):
        make_policy("promp", n_joints=3)


# Linear


def test_linear_is_the_matrix_product_of_the_normalised_observation():
    policy = EXAMPLES["linear-bias"]
    theta, observations = batch("linear-bias", 3)
    for row in range(3):
        W, b = theta[row, :10].reshape(2, 5), theta[row, 10:]
        expected = W @ ((observations[row] - np.arange(5.0)) / np.arange(1.0, 6.0)) + b
        np.testing.assert_allclose(policy.act(theta, observations)[row], expected, rtol=1e-13)


def test_linear_does_not_follow_later_changes_of_the_callers_statistics():
    mean = np.zeros(2)
    policy = Linear(2, 1, mean=mean)
    mean += 1
    assert policy.act(np.ones((1, 2)), np.ones((1, 2)))[0, 0] == 2


def test_observation_statistics_normalise_and_spare_constant_entries():
    rng = np.random.default_rng(0)
    observations = rng.normal([1, -5, 7], [2, 0.1, 0], size=(40, 25, 3))
    mean, std = observation_statistics(observations)
    flat = observations.reshape(-1, 3)
    np.testing.assert_allclose(mean, flat.mean(axis=0))
    np.testing.assert_allclose(std[:2], flat[:, :2].std(axis=0, ddof=1))
    assert std[2] == 1
    np.testing.assert_array_equal(observation_statistics([[3.0, 4.0]]), ([3, 4], [1, 1]))
    with pytest.raises(ValueError, match="at least one"):
        observation_statistics(np.empty((0, 3)))
    observations[0, 2, 1] = np.inf
    with pytest.raises(ValueError, match="entry 1 of observation 2 is inf"):
        observation_statistics(observations)


def test_linear_names_what_is_wrong_with_its_settings():
    with pytest.raises(ValueError, match=r"std must be above 0, but std\[1\] is 0"):
        Linear(2, 1, std=[1, 0])
    with pytest.raises(ValueError, match="mean must have one entry per observation, 2, but it has 3"):
        Linear(2, 1, mean=[1, 2, 3])
    with pytest.raises(ValueError, match="n_actions"):
        Linear(2, 0)


# Tiles


def tile_by_hand(point: list[float], tiling: int, low=SHIP_LOW, high=SHIP_HIGH, tiles=(5, 5, 6), n_tilings=3):
    """Look for the box that holds the point, wall by wall; row-major index over tilings and boxes."""
    index = tiling
    for d, coordinate in enumerate(point):
        side = (high[d] - low[d]) / (tiles[d] - (n_tilings - 1) / n_tilings)
        shift = ((tiling * (2 * d + 1)) % n_tilings - n_tilings + 1) / n_tilings
        place = 0
        while place < tiles[d] - 1 and coordinate >= low[d] + shift * side + (place + 1) * side:
            place += 1
        index = index * tiles[d] + place
    return index


def test_ship_tiles_have_450_parameters_and_the_published_geometry():
    policy = Tiles(SHIP_LOW, SHIP_HIGH)
    assert policy.n_parameters == 450
    np.testing.assert_allclose(policy.sides, [150 / (13 / 3), 150 / (13 / 3), 2 * math.pi / (16 / 3)])
    shifts = (policy.origins - np.array(SHIP_LOW)) / policy.sides
    np.testing.assert_allclose(shifts, np.array([[-2, -2, -2], [-1, -2, 0], [0, -2, -1]]) / 3, atol=1e-12)
    ends = policy.origins + policy.sides * np.array(policy.tiles)
    assert (policy.origins <= np.array(SHIP_LOW)).all()
    assert (ends >= np.array(SHIP_HIGH) - 1e-9).all()


@given(
    st.lists(st.tuples(st.floats(-20, 170), st.floats(-20, 170), st.floats(-4, 4)), min_size=1, max_size=20)
)
@settings(deadline=None)
def test_active_tiles_equal_a_search_by_hand(points):
    policy = Tiles(SHIP_LOW, SHIP_HIGH)
    # keep off the walls themselves, where the two ways to write the same wall differ by a rounding error
    walls = (np.array(points)[:, None] - policy.origins) / policy.sides
    near = (abs(walls - walls.round()) < 1e-9).any(axis=(1, 2))
    points = [point for point, close in zip(points, near, strict=True) if not close]
    if points:
        expected = [[tile_by_hand(list(point), tiling) for tiling in range(3)] for point in points]
        np.testing.assert_array_equal(policy.active(points), expected)


def test_other_grids_equal_the_search_by_hand_too():
    rng = np.random.default_rng(0)
    low, high, tiles = (-1.0, 2.0), (1.0, 7.0), (7, 2)
    policy = Tiles(low, high, tiles, n_tilings=5)
    points = rng.uniform(low, high, size=(300, 2))
    expected = [[tile_by_hand(p, i, low, high, tiles, 5) for i in range(5)] for p in points]
    np.testing.assert_array_equal(policy.active(points), expected)


def test_each_tile_of_every_tiling_is_reached():
    rng = np.random.default_rng(0)
    points = rng.uniform(SHIP_LOW, SHIP_HIGH, size=(30_000, 3))
    assert len(np.unique(Tiles(SHIP_LOW, SHIP_HIGH).active(points))) == 450


def test_a_tiles_action_is_the_sum_of_the_active_weights():
    policy = EXAMPLES["tiles-columns"]
    theta, observations = batch("tiles-columns", 8)
    active = policy.active(observations)
    np.testing.assert_array_equal(
        active, Tiles((0, -1), (1, 1), (3, 4), n_tilings=4).active(observations[:, [2, 0]])
    )
    for row in range(8):
        for action in range(3):
            weights = theta[row].reshape(3, -1)[action]
            expected = math.fsum(weights[active[row]])
            assert policy.act(theta, observations)[row, action] == pytest.approx(expected, abs=1e-14)


def test_outside_the_range_the_nearest_tile_is_active():
    policy = Tiles(SHIP_LOW, SHIP_HIGH)
    outside = np.array([[-1e9, 75, 0], [75, np.inf, 0], [75, 75, 99], [150, 150, math.pi]])
    inside = np.array([[0, 75, 0], [75, 149.9, 0], [75, 75, 3.1], [149.9, 149.9, 3.1]])
    np.testing.assert_array_equal(policy.active(outside), policy.active(inside))


def test_an_observation_that_is_not_a_number_spoils_its_own_row_only():
    policy = Tiles(SHIP_LOW, SHIP_HIGH)
    theta, _ = batch("tiles", 3)
    observations = np.array([[75, 75, 0], [75, np.nan, 0], [20, 20, 1]])
    assert (policy.active(observations)[1] == -1).all()
    np.testing.assert_array_equal(np.isnan(policy.act(theta, observations)[:, 0]), [False, True, False])


def test_tiles_name_what_is_wrong_with_their_settings():
    with pytest.raises(ValueError, match="but they have 2, 2 and 3"):
        Tiles((0, 0), (1, 1))
    with pytest.raises(ValueError, match=r"dimension 1 runs from 0\.0 to 0\.0"):
        Tiles((0, 0), (1, 0), (2, 2))
    with pytest.raises(ValueError, match="columns must name 2"):
        Tiles((0, 0), (1, 1), (2, 2), columns=(0, 1, 2))


# ProMP


def test_promp_bases_are_normalised_gaussians_of_the_phase():
    policy = ProMP(1, 30, 120)
    z, w = np.arange(120) / 119, 0.001
    c = np.array([-2 * w + (1 + 4 * w) * b / 29 for b in range(30)])
    bumps = np.exp(-0.5 * (z[:, None] - c) ** 2 / w)
    np.testing.assert_allclose(
        policy.basis, bumps / bumps.sum(axis=1, keepdims=True), rtol=1e-10, atol=1e-300
    )
    np.testing.assert_allclose(policy.basis.sum(axis=1), 1)


def test_promp_moves_through_time():
    policy = ProMP(2, 30, 120)
    theta = np.zeros((2, 60))
    theta[1, 29] = 1.0  # the last basis of the first joint
    change = np.diff(policy.trajectory(theta), axis=0)[0]
    assert change[-1, 0] > 0.5
    assert abs(change[:60]).max() < 1e-30  # numerically nothing before half time
    assert (np.diff(change[80:, 0]) > 0).all()
    assert (change[:, 1] == 0).all()
    ramp = np.tile(np.arange(30.0), 2)[None]
    assert (np.diff(policy.trajectory(ramp), axis=1) > 0).all()


def test_promp_of_equal_weights_is_constant():
    np.testing.assert_allclose(ProMP(2, 20, 750).trajectory(np.full((1, 40), 0.7)), 0.7)


@pytest.mark.parametrize(("n_bases", "horizon", "width"), [(2, 50, 1e-9), (1, 1, 0.001), (3, 4, 10.0)])
def test_promp_bases_are_finite_at_extreme_settings(n_bases, horizon, width):
    basis = ProMP(1, n_bases, horizon, width).basis
    assert basis.shape == (horizon, n_bases)
    np.testing.assert_allclose(basis.sum(axis=1), 1)


@pytest.mark.parametrize("name", ["n_joints", "n_bases", "horizon", "width"])
def test_promp_names_the_setting_that_is_wrong(name):
    with pytest.raises(ValueError, match=name):
        make_policy("promp", **{"n_joints": 1, "n_bases": 2, "horizon": 3, name: 0})


# DMP


def dmp_by_solve_ivp(weights, start, goal, times, alpha=25.0):
    """One joint by the equations in the reference's form: the forcing term is an acceleration."""
    beta, decay, n_bases = alpha / 4, alpha / 3, len(weights)
    centres = np.exp(-decay * np.arange(n_bases) / (n_bases - 1))
    gaps = centres[:-1] - centres[1:]
    sigma = 0.55 * np.append(gaps, gaps[-1])

    def slope(_, state):
        y, v, x = state
        psi = np.exp(-0.5 * ((x - centres) / sigma) ** 2)
        f = alpha * beta * x * (psi @ weights) / psi.sum()
        return [v, alpha * (beta * (goal - y) - v) + f, -decay * x]

    initial = [start, 0.0, 1.0]
    solution = solve_ivp(slope, (0, times[-1]), initial, t_eval=times, rtol=1e-10, atol=1e-12)
    return solution.y[0]


@pytest.mark.parametrize(("horizon", "duration"), [(60, None), (60, 20.0), (9, None), (300, 299.0)])
def test_dmp_follows_its_differential_equation(horizon, duration):
    policy = DMP(2, 6, horizon, start=(0.3, -1.0), duration=duration)
    theta = np.random.default_rng(1).normal(size=(3, policy.n_parameters))
    times = np.arange(horizon) / (duration or horizon - 1)
    movement = policy.trajectory(theta)
    for row in range(3):
        for joint in range(2):
            weights, goal = theta[row, 6 * joint : 6 * joint + 6], theta[row, 12 + joint]
            expected = dmp_by_solve_ivp(weights, policy.start[joint], goal, times)
            np.testing.assert_allclose(movement[row, :, joint], expected, atol=1e-6)


def test_dmp_without_weights_goes_to_its_goal_and_does_not_overshoot():
    theta = np.zeros((1, 12))
    theta[0, 10:] = [2.0, -3.0]
    movement = DMP(2, 5, 100).trajectory(theta)[0]
    np.testing.assert_array_equal(movement[0], 0)
    np.testing.assert_allclose(movement[-1], [2, -3], rtol=1e-4)
    assert (np.diff(movement[:, 0]) > 0).all()
    assert movement[:, 0].max() <= 2


RESTING = DMP(2, 8, 200, start=0.5, goal=(1.0, -2.0), duration=60.0)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_dmp_comes_to_rest_at_the_goal_whatever_the_weights(seed):
    policy = RESTING
    theta = 5 * np.random.default_rng(seed).normal(size=(4, policy.n_parameters))
    assert policy.n_parameters == 16
    movement = policy.trajectory(theta)
    assert (movement[:, 0] == 0.5).all()
    np.testing.assert_allclose(movement[:, -1], np.broadcast_to([1.0, -2.0], (4, 2)), atol=1e-6)


def test_dmp_weights_bend_the_way():
    policy = DMP(1, 10, 100, goal=0.0)
    early, late = np.zeros((2, 1, 10))
    early[0, 1], late[0, 8] = 1.0, 1.0
    assert abs(policy.trajectory(early)).argmax() < abs(policy.trajectory(late)).argmax()
    assert abs(policy.trajectory(late)[0, :30]).max() < 1e-3 * abs(policy.trajectory(late)).max()


def test_dmp_with_one_basis_is_finite():
    assert np.isfinite(DMP(1, 1, 10).trajectory(np.ones((1, 2)))).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("horizon", 1), ("start", (1, 2, 3)), ("goal", (1, 2, 3)), ("goal", np.nan), ("duration", 0.0)],
)
def test_dmp_names_the_setting_that_is_wrong(name, value):
    with pytest.raises(ValueError, match=name):
        make_policy("dmp", **{"n_joints": 2, "n_bases": 2, "horizon": 10, name: value})
