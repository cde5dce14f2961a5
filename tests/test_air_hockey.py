"""AirHockey against hand calculations: kinematics, bounces, sliding, rewards; and against plain mj_step."""

from __future__ import annotations

import math
import pickle
import re

import mujoco
import numpy as np
import physics
import pytest
from physics import mallet_of, puck_of

from klimb.tasks import _mujoco, air_hockey
from klimb.tasks._mujoco import Simulation, load_model, roll_out
from klimb.tasks.air_hockey import GOAL, OFF_TABLE, OWN_GOAL, PLAYING, AirHockey, AirHockeyGame, judge

PUCK, MALLET = 0.03165, 0.05
REST = np.array([-0.9273, 0.9273, math.pi / 2])
RNG = np.random.default_rng


@pytest.fixture(scope="module")
def model():
    return load_model("air_hockey.xml")


@pytest.fixture(scope="module")
def batch():
    """Parameter vectors from timid to wild, and what becomes of them; some score, some leave, some miss."""
    theta = RNG(1).normal(size=(24, 90)) * np.repeat([0.3, 1.0, 5.0], 8)[:, None]
    return theta, AirHockey().evaluate(theta)


def reach(mallet, hand):
    """Joint angles (3,) that put the mallet at a place, the last link pointing in direction `hand`."""
    wrist = mallet + 1.51 - 0.4 * np.exp(1j * hand)
    bend = math.acos((abs(wrist) ** 2 - 0.5**2 - 0.4**2) / (2 * 0.5 * 0.4))
    shoulder = float(np.angle(wrist / (0.5 + 0.4 * np.exp(1j * bend))))
    return np.array([shoulder, bend, hand - shoulder - bend])


def state_of(mallet=-0.81, puck=-0.2 + 0.15j, velocity=0.0):
    """A state by the places of mallet and puck, complex numbers; good to judge, not to simulate."""
    arm = reach(mallet, np.angle(mallet + 1.51))
    return np.array([*arm, np.real(puck), np.imag(puck), 0, 0, 0, np.real(velocity), np.imag(velocity)])


def at_rest(puck, velocity=0.0):
    """A state with the arm as at the start."""
    return np.array([*REST, np.real(puck), np.imag(puck), 0, 0, 0, np.real(velocity), np.imag(velocity)])


def hold(state, touch=()):
    """A control step during which nothing changes: what `judge` takes."""
    touches = np.zeros((air_hockey.SUBSTEPS, 1))
    touches[list(touch)] = 1.0
    return np.tile(state, (air_hockey.SUBSTEPS, 1)), touches


def watch(model, initial, torques, threads=1):
    """All states (N, 1 + steps, 10) of free episodes, which nothing ends."""
    count, steps, _ = torques.shape
    seen = np.empty((count, 1 + 16 * steps, 10))
    seen[:, 0] = initial

    def score(rows, start, states, sensors):
        seen[rows, 1 + 16 * start : 1 + 16 * start + states.shape[1]] = states
        return np.ones(len(rows), dtype=bool)

    failed = roll_out(model, initial, torques, score, substeps=16, threads=threads)
    assert not failed.any()
    return seen


# ------------------------------------------------------------------------------------------------ the model


def test_geometry_and_masses_are_the_published_ones(model):
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    position = {name: data.geom(name).xpos for name in ("left", "right", "front left", "back right")}
    assert position["left"][1] == air_hockey.HALF_WIDTH == 0.51
    assert position["right"][1] == -0.51
    for name, x, y in (("front left", 0.98, 0.25), ("back right", -0.98, -0.25)):
        half = model.geom(name).size
        corner = np.abs(position[name][:2]) - half[:2]  # the corner nearest to the table's middle
        assert np.allclose(corner * np.sign([x, y]), [x, y])
    assert model.geom("puck").size[0] == PUCK
    assert model.geom("mallet").size[0] == MALLET
    assert model.body("puck").mass[0] == 0.01
    assert [model.body(name).mass[0] for name in ("upper arm", "forearm", "hand")] == [3.0, 2.4, 2.4]
    assert model.opt.timestep * air_hockey.SUBSTEPS == pytest.approx(1 / 60)
    assert np.array_equal(model.actuator_ctrlrange, [[-air_hockey.TORQUE_LIMIT, air_hockey.TORQUE_LIMIT]] * 3)


def test_joints_stop_at_their_limits(model):
    pushed = np.repeat([[10.0] * 3, [-10.0] * 3], 60, axis=0).reshape(2, 60, 3)
    start = np.tile(at_rest(0.0), (2, 1))
    angles = watch(model, start, pushed)[:, :, :3]
    limits = np.array([2.967, 2.094, 2.094])
    assert np.all(np.abs(angles) < limits + 0.06)
    assert np.all(np.abs(angles[:, -1, 1:]).max(axis=0) > limits[1:] - 0.01)


def test_forward_kinematics_agree_with_the_model_and_with_complex_numbers(model):
    data = mujoco.MjData(model)
    for angles in RNG(0).uniform(-2, 2, (20, 3)):
        state = np.concatenate([angles, np.zeros(7)])
        data.qpos[:3] = angles
        mujoco.mj_kinematics(model, data)
        x, y = air_hockey.mallet_position(state)
        assert np.allclose([x, y, 0.0], data.geom("mallet").xpos, atol=1e-12)
        assert abs(complex(x, y) - mallet_of(state)) < 1e-12
    assert air_hockey.mallet_position(np.concatenate([REST, np.zeros(7)])) == pytest.approx(
        (-0.81, 0), abs=1e-4
    )


@pytest.mark.parametrize(
    ("restitution", "start", "direction"),
    [(0.847, (0.1, 0.51 - PUCK), 1j), (0.97, (0.98 - PUCK, 0.4), 1.0), (0.97, (-0.98 + PUCK, -0.4), -1.0)],
)
def test_rims_give_back_the_published_share_of_the_speed(model, restitution, start, direction):
    phases = (np.arange(16) + 0.5) / 16  # where between two physics steps the contact begins
    for speed in (0.3, 2.0, 5.0):
        puck = complex(*start) - direction * speed * (3 + phases) / 960
        initial = np.array([at_rest(place, direction * speed) for place in puck])
        after = watch(model, initial, np.zeros((16, 2, 3)))[:, -1, 8:]
        bounce = -(after @ [direction.real, direction.imag]) / speed
        assert bounce.mean() == pytest.approx(restitution, abs=0.003)
        assert np.all(np.abs(bounce - restitution) < 0.02)
        assert np.all(bounce < 1)


def test_mallet_gives_back_seven_tenths_of_the_relative_speed(model):
    # a puck at rest and an arm that turns about its shoulder: the mallet at (-.81, 0) moves along +y
    phases = (np.arange(16) + 0.5) / 16
    speed = 0.7 * 1.5
    gap = (PUCK + MALLET) + speed * (3 + phases) / 960
    initial = np.array([[*REST, -0.81, y, 1.5, 0, 0, 0, 0] for y in gap])
    states = watch(model, initial, np.zeros((16, 2, 3)))
    mallet = np.diff(mallet_of(states), axis=1) * 960
    approach, separation = mallet[:, 0].imag, states[:, 20, 9] - mallet[:, 19].imag
    assert np.mean(separation / approach) == pytest.approx(0.7, abs=0.02)
    assert np.all(np.abs(separation / approach - 0.7) < 0.05)


@pytest.mark.parametrize("speed", [0.02, 0.6, 2.0])
def test_puck_slides_as_friction_and_damping_say(model, speed):
    initial = at_rest(-0.5 + 0.3j, speed)[None]
    states = watch(model, initial, np.zeros((1, 30, 3)))[0]
    friction, damping, time = 2.96e-4 * 9.81, 4.2e-4, 0.5
    # v' = -friction - damping v
    expected = (speed + friction / damping) * math.exp(-damping * time) - friction / damping
    assert speed - states[-1, 8] == pytest.approx(speed - expected, rel=1e-3)
    assert states[-1, 9] == 0


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0, 6.0])
def test_episodes_from_timid_to_wild_keep_to_the_laws(scale):
    # 6 times the initial standard deviation is where the torques are at their limit most of the time
    found = physics.random_air_hockey(AirHockey("random"), 40, scale, seed=2)
    assert not found["failed episodes"].any()
    # a fast puck sinks into a rim, but its centre never does, and leaves through a goal only
    assert not found["pucks that left the table"].any()
    for name in found.keys() & physics.BARS.keys():
        assert np.all(found[name] < physics.BARS[name]), name
    if scale == 5:
        assert found["(mallet met puck)"].sum() > 5


def test_what_is_watched_moves_as_the_task_does(model, batch):
    torques = air_hockey.torques(AirHockey().policy.trajectory(batch[0][-4:]))
    start = np.tile(air_hockey.initial_state("incoming", RNG(0)), (4, 1))
    states = watch(model, start, torques)
    seen = physics.watch_air_hockey(start, torques, threads=2)
    assert np.array_equal(seen.before, states[:, :-1])
    assert np.array_equal(seen.after, states[:, 1:])


def test_depths_are_those_of_geometry():
    puck = np.array([0.5, 0.5j, 0.95 + 0.4j, 0.98 + 0.24j, 1.0 + 0.26j, -0.97 - 0.3j])
    states = np.array([hold(state_of(puck=place))[0] for place in puck])
    zeros = np.zeros((6, air_hockey.SUBSTEPS, 5))
    seen = physics.Record(states, states, zeros[:, :, :3], zeros, zeros[:, 0, 0] > 0)
    found = physics.air_hockey_findings(seen, np.zeros((6, 1, 3)))
    depth = PUCK + np.array([-0.51, 0.5 - 0.51, 0.95 - 0.98, -0.01, 0.01, -0.01])
    assert np.allclose(found["puck in a rim, mm"], 1e3 * np.maximum(depth, 0))
    assert found["pucks that left the table"].tolist() == [0, 0, 0, 0, 1, 0]
    # a mallet that jumps over the puck within a step
    way = np.array([[-0.1 + 0.01j, 0.1 + 0.01j, 0.2]])
    assert np.allclose(physics.least_distance(way), [[0.01, 0.1, 0.2]], atol=1e-3)


def test_no_energy_comes_from_nothing_where_mallet_and_rims_pinch_the_puck():
    # no torques, so that energy can only fall; the corner of the table is the worst place
    rng = RNG(3)
    starts = []
    while len(starts) < 60:
        mallet = complex(*rng.uniform([-0.92, 0.36], [-0.86, 0.42]))
        puck = complex(*rng.uniform([-0.98 + PUCK, 0.42], [-0.9, 0.51 - PUCK]))
        angles = reach(mallet, rng.uniform(0, 2))
        if abs(puck - mallet) > PUCK + MALLET and np.all(np.abs(angles[1:]) < 2):
            links = np.array([0.5, 0.4, 0.4]) * np.exp(1j * np.cumsum(angles))
            lever = 1j * np.cumsum(links[::-1])[::-1]  # how the mallet moves with each joint
            into_corner = rng.uniform([-2, 0], [0, 2])
            speeds = np.linalg.pinv(np.array([lever.real, lever.imag])) @ into_corner
            starts.append([*angles, puck.real, puck.imag, *speeds, *rng.uniform(-3, 3, 2)])
    seen = physics.watch_air_hockey(np.array(starts), np.zeros((60, 12, 3)))
    energy = seen.sensors[:, :, physics.ENERGY]
    assert not seen.failed.any()
    assert np.all(energy <= energy[:, :1] * (1 + 1e-9))


def test_energy_from_nothing_is_noticed():
    slack = np.array([[True, True, False, False, True, False, True]])
    gains = physics.gains(np.array([[0.0, 0, -3, -2, 1, 0, 0.5]]), slack)
    assert gains.tolist() == [[0, 0, -3, -2, 1, -1, -0.5]]
    assert physics.rises(np.array([[0.0, -1, -3, -2, 1, 0, 0.5]]), slack).tolist() == [
        [0, 0, -2, -1, 2, 1, 1.5]
    ]
    # an arm that starts to move by itself
    states = np.array([hold(at_rest(0.0))[0]])
    sensors = np.zeros((1, air_hockey.SUBSTEPS, 3))
    sensors[:, 9:, physics.ENERGY] = 0.5
    seen = physics.Record(states, states, sensors, np.zeros((1, 16, 5)), np.zeros(1, dtype=bool))
    assert physics.air_hockey_findings(seen, np.zeros((1, 1, 3)))["energy balance, %"] == 100


def test_drawn_parts_touch_nothing_and_there_are_cameras(model):
    assert not model.geom_contype.any()
    assert not model.geom_conaffinity.any()
    assert model.npair == 7
    assert {model.camera(place).name for place in range(model.ncam)} == {"above", "side"}
    assert model.nmesh == 0


# ------------------------------------------------------------------------------------------------- rewards

STILL = np.zeros(3)


def test_before_the_hit_nearness_and_direction_pay():
    # mallet .3 behind a puck that lies on the way to the goal: the cosine is 1
    reward, stroke, outcome = judge(*hold(state_of(-0.81, -0.51)), STILL, -1.0)
    assert reward == pytest.approx(math.exp(-8 * (0.3 - 0.08)), rel=1e-9)
    assert (stroke < 0, outcome) == (True, PLAYING)
    # the puck to the side: cosine between (.1, .3) and (1.69, -.3), negative beyond a right angle
    reward, _, _ = judge(*hold(state_of(-0.81, -0.71 + 0.3j)), STILL, -1.0)
    cosine = (0.1 * 1.69 - 0.3 * 0.3) / (math.hypot(0.1, 0.3) * math.hypot(1.69, 0.3))
    assert reward == pytest.approx(math.exp(-8 * (math.hypot(0.1, 0.3) - 0.08)) * cosine, rel=1e-3)
    # a puck behind the mallet pays nothing
    assert judge(*hold(state_of(-0.51, -0.81)), STILL, -1.0)[0] == 0


def test_after_the_hit_the_stroke_is_kept_and_speed_pays():
    touching = state_of(-0.81, -0.81 + PUCK + MALLET, 1.5 + 0.2j)
    reward, stroke, _ = judge(*hold(touching, touch=[7]), STILL, -1.0)
    assert stroke == pytest.approx(math.exp(-8 * (PUCK + MALLET - 0.08)), rel=1e-3)
    assert reward == 1 + stroke + 0.1 * 1.5
    # later the mallet may be anywhere, and another touch does not count again
    away = state_of(-0.7 + 0.2j, 0.5 + 0.1j, -2.0)
    assert judge(*hold(away, touch=[0, 1]), STILL, stroke)[:2] == (1 + stroke - 0.2, stroke)


def test_sinking_into_the_puck_does_not_pay():
    deep = state_of(-0.81, -0.78)
    assert judge(*hold(deep, touch=[0]), STILL, -1.0)[1] <= math.exp(-8 * (PUCK + MALLET - 0.08))


def test_goals_count_within_a_control_step_and_between_the_posts_only():
    states, touches = hold(state_of(puck=0.9 + 0.1j))
    states[5:, 3] = 0.981
    states[9:, 4] = 0.3  # already beyond the goal by then
    assert judge(states, touches, STILL, 0.5)[::2] == (300.0, GOAL)
    assert judge(*hold(state_of(puck=-0.981 - 0.2j)), STILL, 0.5)[::2] == (0.0, OWN_GOAL)
    assert judge(*hold(state_of(puck=0.981 + 0.26j)), STILL, 0.5)[2] == PLAYING
    assert judge(*hold(state_of(puck=0.979)), STILL, 0.5)[2] == PLAYING


def test_leaving_the_table_outweighs_a_goal():
    assert judge(*hold(state_of(-0.985 + 0.1j, 1.0)), STILL, 0.5)[::2] == (-10.0, OFF_TABLE)
    assert judge(*hold(state_of(-0.6 + 0.511j, 0.0)), STILL, -1.0)[::2] == (-10.0, OFF_TABLE)
    assert judge(*hold(state_of(-0.6 + 0.509j, 0.0)), STILL, -1.0)[2] == PLAYING


def test_effort_costs_a_thousandth_of_its_length():
    arguments = hold(state_of())
    effort = np.array([2.0, -3.0, 6.0])
    assert judge(*arguments, STILL, 0.5)[0] - judge(*arguments, effort, 0.5)[0] == pytest.approx(0.007)


def test_torque_is_three_newton_metres_per_unit_up_to_ten():
    assert np.array_equal(air_hockey.torques(np.array([1.0, -2.0, 50.0])), [3.0, -6.0, 10.0])


# ---------------------------------------------------------------------------------------------------- task


def test_the_task_says_what_it_is():
    task = AirHockey()
    assert (task.n_parameters, task.initial_std, task.optimum) == (90, 1.0, None)
    assert hash(task) == hash(AirHockey())


def test_doing_nothing_misses_the_puck_which_ends_in_the_own_goal():
    path = AirHockey().trajectory(np.zeros(90))
    distance = np.abs(puck_of(path) - mallet_of(path))
    assert distance.min() == pytest.approx(0.15, abs=0.005)
    assert path[-1, 3] < -0.98 <= path[-2, 3]
    assert len(path) - 1 == pytest.approx(0.78 / 0.6 * 60, abs=2)
    returns, success = AirHockey().evaluate(np.zeros((1, 90)), return_success=True)
    assert not success[0]
    assert 0 < returns[0] < 10
    # the puck that lies still is not touched either, and stays
    still = AirHockey("still").trajectory(np.zeros(90))
    assert len(still) == 121
    assert np.array_equal(still[0], still[-1])


def test_the_task_is_not_solved_at_the_start():
    returns, success = AirHockey(threads=2).evaluate(RNG(4).normal(size=(150, 90)), return_success=True)
    assert not success.any()
    assert np.isfinite(returns).all()
    assert returns.max() < 150


def test_returns_have_the_same_bits_in_any_batch_order_and_number_of_threads(batch, monkeypatch):
    theta, returns = batch
    order = RNG(5).permutation(len(theta))
    assert np.array_equal(AirHockey(threads=2).evaluate(theta), returns)
    assert np.array_equal(AirHockey(threads=3).evaluate(theta[order]), returns[order])
    assert np.array_equal([AirHockey().evaluate(row[None])[0] for row in theta[::3]], returns[::3])
    monkeypatch.setattr(_mujoco, "_SEGMENT_BYTES", 100_000)  # a few episodes at a time
    assert np.array_equal(AirHockey(threads=2).evaluate(theta), returns)


def test_stepping_by_hand_gives_the_same_bits(batch):
    theta, returns = batch
    game = AirHockeyGame()
    for row in range(0, len(theta), 3):  # one game for all: a reset must leave nothing behind
        game.reset(RNG(0))
        total = 0.0
        for step, action in enumerate(AirHockey().policy.trajectory(theta[row : row + 1])[0]):
            _, reward, ended = game.step(action)
            total += 0.99**step * reward
            if ended:
                break
        assert total == pytest.approx(returns[row], rel=1e-12)


def test_a_plain_loop_over_mj_step_gives_the_same_states_to_the_last_bit(model, batch):
    torques = air_hockey.torques(AirHockey().policy.trajectory(batch[0][-4:]))
    start = air_hockey.initial_state("incoming", RNG(0))
    states = watch(model, np.tile(start, (4, 1)), torques, threads=2)
    simulation = Simulation(model, air_hockey.SUBSTEPS)
    for episode, episode_torques in zip(states, torques, strict=True):
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = start[:5], start[5:]
        simulation.reset(start)
        for step, torque in enumerate(episode_torques):
            data.ctrl[:] = torque
            mujoco.mj_step(model, data, nstep=air_hockey.SUBSTEPS)
            assert np.array_equal(
                np.concatenate([data.qpos, data.qvel]), episode[(step + 1) * air_hockey.SUBSTEPS]
            )
            recorded, _ = simulation.step(torque)
            assert np.array_equal(recorded[-1], episode[(step + 1) * air_hockey.SUBSTEPS])


def timed(data):
    """Seconds by MuJoCo's clock that its steps have taken."""
    return data.timer[mujoco.mjtTimer.mjTIMER_STEP].duration


def test_no_time_is_spent_on_the_clock_and_mujoco_has_it_back_afterwards(model):
    AirHockey().evaluate(np.zeros((1, 90)))
    simulation = Simulation(model)
    simulation.step(np.zeros(3))
    assert timed(simulation.data) == 0.0
    mujoco.mj_step(model, simulation.data)
    assert timed(simulation.data) > 0.0


def test_a_clock_that_somebody_has_set_stays(model):
    ticks = iter(range(1000))
    simulation = Simulation(model)
    mujoco.set_mjcb_time(lambda: float(next(ticks)))
    try:
        simulation.step(np.zeros(3))
        assert timed(simulation.data) >= 1.0
        assert mujoco.get_mjcb_time() is not None
    finally:
        mujoco.set_mjcb_time(None)


def test_a_shot_scores():
    game = AirHockeyGame()
    state = game.start(at_rest(0.5 + 0.1j, 2.0))
    assert game.outcome == PLAYING
    for _ in range(60):
        state, reward, ended = game.step(np.array([0.0, 0.0, 0.1]))
        if ended:
            break
    assert game.outcome == GOAL
    assert reward == 300 - 0.001 * 0.1
    assert state[3] > 0.98
    assert game.reset(RNG(0))[3] == -0.2
    assert game.outcome == PLAYING


def test_a_random_puck_depends_on_the_seed_of_the_episode_alone():
    task = AirHockey("random")
    theta = np.repeat(RNG(6).normal(size=(1, 90)), 6, axis=0)
    seeds = np.array([3, 1, 4, 1, 5, 9])
    returns = task.evaluate(theta, seeds)
    assert returns[1] == returns[3]
    assert len(set(returns)) == 5
    assert np.array_equal(task.evaluate(theta[:2], seeds[4:]), returns[4:])
    assert np.array_equal(task.evaluate(theta, 7)[:3], task.evaluate(theta[:3], 7))
    starts = np.array([air_hockey.initial_state("random", RNG(seed)) for seed in range(500)])
    for column, low, high in ((3, -0.2, -0.2), (4, 0.1, 0.2), (8, -0.66, -0.54), (9, -0.05, 0.05)):
        assert low <= starts[:, column].min() <= low + 0.003
        assert high - 0.003 <= starts[:, column].max() <= high


def test_trajectory_replays_the_evaluated_episode():
    task = AirHockey("random")
    theta = RNG(7).normal(size=90) * 0.5
    path = task.trajectory(theta, [11])
    assert path.shape[1] == 5
    assert np.array_equal(path[0], air_hockey.initial_state("random", RNG(np.uint64(11)))[:5])
    assert np.array_equal(path, task.trajectory(theta, [11]))
    assert not np.array_equal(path, task.trajectory(theta, [12]))


def test_a_broken_simulation_gives_nan_and_spares_the_others(batch, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the working directory
    theta, returns = batch

    def broken(actions):
        torques = np.clip(3 * actions, -10, 10)
        torques[2, 3] = np.nan
        return torques

    monkeypatch.setattr(air_hockey, "torques", broken)
    spoilt, success = AirHockey(threads=2).evaluate(theta, return_success=True)
    assert np.isnan(spoilt[2])
    assert not success[2]
    assert np.array_equal(np.delete(spoilt, 2), np.delete(returns, 2))


def test_a_diverging_simulation_is_noticed_although_mujoco_starts_it_anew(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    unstable = mujoco.MjModel.from_xml_string(
        """<mujoco><option timestep=".1" gravity="0 0 0"/>
        <worldbody><body><joint name="x" type="slide"/><geom size=".1" mass="1"/></body></worldbody>
        <actuator><general joint="x" gainprm="0" biastype="affine" biasprm="0 1000 0"/></actuator></mujoco>"""
    )
    initial = np.array([[0.0, 0.0], [1e-3, 0.0], [0.0, 0.0]])
    seen = []

    def score(rows, start, states, sensors):
        seen.append((rows, states))
        return np.ones(len(rows), dtype=bool)

    failed = roll_out(unstable, initial, np.zeros((3, 100, 1)), score)
    assert failed.tolist() == [False, True, False]
    assert np.isfinite(seen[-1][1]).all()  # which is why nobody would have noticed
    assert seen[-1][0].tolist() == [0, 2]  # and it is not simulated any further
    simulation = Simulation(unstable)
    simulation.reset(initial[1])
    while not simulation.failed:
        simulation.step(np.zeros(1))
    simulation.reset(initial[0])
    simulation.step(np.zeros(1))
    assert not simulation.failed


def test_an_episode_that_is_over_is_not_simulated_any_further(model):
    torques = np.zeros((4, 20, 3))
    calls = []

    def score(rows, start, states, sensors):
        calls.append((start, rows.tolist(), states.shape, sensors.shape))
        return rows >= len(calls)

    roll_out(model, np.tile(at_rest(0.0), (4, 1)), torques, score, substeps=2, segment=6)
    assert calls == [
        (0, [0, 1, 2, 3], (4, 12, 10), (4, 12, 1)),
        (6, [1, 2, 3], (3, 12, 10), (3, 12, 1)),
        (12, [2, 3], (2, 12, 10), (2, 12, 1)),
        (18, [3], (1, 4, 10), (1, 4, 1)),
    ]


def test_tasks_travel_to_other_processes_and_leave_their_input_alone(batch):
    theta, returns = batch
    frozen = theta[:2].copy()
    frozen.flags.writeable = False
    task = pickle.loads(pickle.dumps(AirHockey(threads=2)))
    assert np.array_equal(task.evaluate(frozen), returns[:2])
    assert task.evaluate(np.empty((0, 90))).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AirHockey(puck="moving"), "puck must be one of 'incoming', 'random', 'still'"),
        (lambda: AirHockey(threads=0), "threads must be a whole number of at least 1, but 0 came"),
        (lambda: AirHockey().evaluate(np.zeros((2, 91))), "theta must hold one parameter vector per row"),
        (lambda: AirHockey().evaluate(np.full((1, 90), np.nan)), "theta must be finite"),
        (lambda: AirHockey().evaluate(np.zeros((2, 90)), seed=[1]), "seed must be one number or 2 of them"),
        (lambda: AirHockey().trajectory(np.zeros((1, 90))), "theta must be a vector"),
        (lambda: AirHockeyGame().step(np.zeros(2)), "action must have 3 entries"),
        (lambda: AirHockeyGame("moving"), "puck must be one of"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
