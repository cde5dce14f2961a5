"""BallStopping: physics against closed forms, rewards by hand, batches against single steps."""

import math
import subprocess
import sys

import mujoco
import numpy as np
import physics
import pytest

from klimb.tasks.ball_stopping import (
    BALL,
    DISCOUNT,
    DROPPED,
    GOING,
    HORIZON,
    JOINTS,
    SEGMENT,
    START_POSTURE,
    STOPPED,
    VELOCITY,
    BallStopping,
    BallStoppingEpisode,
    ball_height,
    ball_speed,
    discounted,
    joint_references,
    judge,
    model,
    no_memory,
    observation,
)

DT = 1 / 240
G = 9.81
WIDE = {"ball": "random", "x_spread": 0.1, "speed_spread": 1 / 3, "direction_spread": math.pi / 18}
LINKS = ("link1", "link2", "link3", "link4", "link5", "link6", "palm")


def parameters(count, std=1.0, seed=0):
    return std * np.random.default_rng(seed).standard_normal((count, 140))


def play(task, theta, seed=0):
    """One episode by single steps: states (T, 27), rewards (T,) and the episode."""
    episode = BallStoppingEpisode(task)
    episode.reset(np.random.default_rng(seed))
    states, rewards = [], []
    for action in task.policy.trajectory(theta[None])[0]:
        _, reward, over = episode.step(action)
        states.append(episode.state)
        rewards.append(reward)
        assert over == (episode.outcome != GOING)
        if over:
            break
    return np.array(states), np.array(rewards), episode


@pytest.fixture(scope="module")
def stopping():
    """Parameters of episodes that stop the ball."""
    theta = parameters(400, seed=3)
    _, success = BallStopping().evaluate(theta, return_success=True)
    assert 0.002 < success.mean() < 0.1  # it happens, rarely: there is something to learn from, and to learn
    return theta[success]


# --------------------------------------------------------------------------------------------- the model


def test_palm_is_where_trigonometry_puts_it():
    compiled, data = model(), mujoco.MjData(model())
    mujoco.mj_resetDataKeyframe(compiled, data, 0)
    mujoco.mj_forward(compiled, data)
    x, z = -0.25, 0.6 + 0.16 + 0.18
    for angle, length in ((0.4, 0.2 + 0.2), (0.4 + 1.15, 0.2 + 0.2), (0.4 + 1.15 + 1.05, 0.08 + 0.1)):
        x, z = x + length * math.sin(angle), z + length * math.cos(angle)
    np.testing.assert_allclose(data.site("palm").xpos, [x, 0, z], atol=1e-12)
    np.testing.assert_allclose([x, z], [0.40, 1.16], atol=0.005)


def test_model_has_the_published_constants():
    compiled = model()
    assert compiled.opt.timestep == DT
    np.testing.assert_array_equal(compiled.geom("table").size, [0.5, 1.5, 0.3])
    np.testing.assert_array_equal(compiled.geom("table").pos, [0.5, 0, 0.3])
    assert compiled.geom("ball").size[0] == 0.2
    assert compiled.body("ball").mass[0] == 0.2
    limits = np.where(np.arange(7) % 2 == 0, 2.967, 2.094)
    np.testing.assert_allclose(compiled.jnt_range[:7], np.column_stack([-limits, limits]))
    np.testing.assert_allclose(compiled.actuator_gainprm[:, 0], [300, 300, 200, 200, 100, 80, 40])
    np.testing.assert_allclose(-compiled.actuator_biasprm[:, 2], 0.2 * compiled.actuator_gainprm[:, 0])
    np.testing.assert_allclose(compiled.actuator_forcerange[:, 1], [300, 300, 150, 150, 80, 40, 40])
    np.testing.assert_array_equal(compiled.key("start").qpos[JOINTS], START_POSTURE)
    fixed = BallStopping().initial_state(np.random.default_rng(0))
    np.testing.assert_array_equal([*compiled.key("start").qpos, *compiled.key("start").qvel], fixed)


def test_every_part_of_the_arm_can_touch_the_ball():
    compiled = model()
    pairs = [
        {compiled.geom(pair.geom1[0]).name, compiled.geom(pair.geom2[0]).name}
        for pair in map(compiled.pair, range(compiled.npair))
    ]
    for part in ("base", *LINKS):
        assert {"ball", part} in pairs


def test_importing_the_task_needs_no_graphics():
    code = (
        "import sys, klimb.tasks.ball_stopping as task, numpy as np;"
        "task.BallStopping().evaluate(np.zeros((1, 140)));"
        "graphics = ('OpenGL', 'glfw', 'mujoco.egl', 'mujoco.osmesa', 'mujoco.glfw', 'mujoco.renderer');"
        "print([name for name in sys.modules if name.startswith(graphics)])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={"MUJOCO_GL": "disabled"}, check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------------------------- the physics


def test_untouched_ball_slides_rolls_and_drops_as_mechanics_say():
    path = BallStopping().trajectory(np.zeros(140))
    y, z = path[:, BALL][:, 1], path[:, BALL][:, 2]
    # slides with friction .3 until it rolls with 5/7 of its speed, then rolling friction slows it down
    slide = 2 * 3 / (7 * 0.3 * G)
    slide_end = 1 - 3 * slide + 0.3 * G * slide**2 / 2
    rolling, slowdown = 3 * 5 / 7, 0.01 * G / (0.2 * 1.4)
    for time in (0.5 * slide, slide, 0.6, 0.9, 1.1):
        after = max(time - slide, 0)
        before = min(time, slide)
        expected = 1 - 3 * before + 0.3 * G * before**2 / 2 - rolling * after + slowdown * after**2 / 2
        assert np.interp(time, np.arange(len(y)) * DT, y) == pytest.approx(expected, abs=0.03)
    # over the edge, and .1 m down
    edge = (rolling - math.sqrt(rolling**2 - 2 * slowdown * (1.5 + slide_end))) / slowdown
    assert len(path) - 1 == pytest.approx((slide + edge + math.sqrt(2 * 0.1 / G)) / DT, abs=8)
    assert len(path) - 1 == 318
    assert abs(z[y > -1.45] - 0.8).max() < 1e-3  # it neither hops nor sinks in
    np.testing.assert_allclose(path[:, JOINTS], np.tile(START_POSTURE, (len(path), 1)), atol=1e-6)


@pytest.mark.parametrize("link", ["link1", "link3", "link5", "palm"])  # the others end where the next begins
@pytest.mark.parametrize("speed", [0.5, 2.0])
def test_ball_comes_back_from_a_held_link_with_four_fifths_of_its_speed(link, speed):
    compiled, data = model(), mujoco.MjData(model())
    ratios = []
    for shift in np.linspace(0, speed * DT, 4):  # where between two steps the ball arrives
        mujoco.mj_resetDataKeyframe(compiled, data, 0)
        mujoco.mj_forward(compiled, data)
        data.qpos[BALL] = data.geom(link).xpos
        data.qpos[8] += compiled.geom(link).size[0] + 0.2 + 0.02 + shift
        data.qvel[:] = 0
        data.qvel[8] = -speed
        data.xfrc_applied[compiled.body("ball").id, 2] = 0.2 * G  # no gravity, only the bounce
        while data.qvel[8] < 0 or data.sensor("touch").data[0] > 0:
            data.qpos[JOINTS], data.qvel[JOINTS] = START_POSTURE, 0
            mujoco.mj_step(compiled, data)
            assert data.time < 1
        ratios.append(data.qvel[8] / speed)
    assert np.mean(ratios) == pytest.approx(0.8, abs=0.04)


def test_dropped_ball_stays_on_the_table():
    compiled, data = model(), mujoco.MjData(model())
    mujoco.mj_resetDataKeyframe(compiled, data, 0)
    data.qpos[9], data.qvel[7:] = 1.1, 0
    heights = []
    for _ in range(240):
        mujoco.mj_step(compiled, data)
        heights.append(data.qpos[9])
    landed = int(np.argmax(np.array(heights) < 0.8))
    assert landed * DT == pytest.approx(math.sqrt(2 * 0.3 / G), abs=2 * DT)
    assert max(heights[landed:]) < 0.81
    assert min(heights) > 0.77
    assert heights[-1] == pytest.approx(0.8, abs=1e-3)


def test_energy_grows_by_the_work_of_the_actuators_at_most(stopping):
    """A ball caught between palm and table is what a contact that makes energy would show in."""
    task = BallStopping()
    references = joint_references(task.policy.trajectory(np.concatenate([stopping, parameters(5, seed=4)])))
    start = np.tile(task.initial_state(np.random.default_rng(0)), (len(references), 1))
    found = physics.ball_stopping_findings(physics.watch_ball_stopping(start, references))
    assert found["(arm met ball)"].sum() >= len(stopping)
    for name, bar in physics.BARS.items():
        if name.startswith("energy") and name in found:
            assert (found[name] < bar).all(), name


@pytest.mark.parametrize("std", [0.1, 1.0, 5.0])
def test_ball_passes_through_nothing(std):
    found = physics.random_ball_stopping(BallStopping(**WIDE), 24, std, seed=5)
    assert not found["failed episodes"].any()
    for name in ("ball in the table, mm", "ball in a link, mm"):
        assert (found[name] < physics.BARS[name]).all()
    assert (found["ball in a link, mm"] > 0).any() or std < 1
    for theta in parameters(4, std, seed=5):
        assert BallStopping(**WIDE).trajectory(theta)[:, 9].min() >= 0.7 - 8 * DT  # the end comes at once


def test_depth_in_the_arm_is_that_of_geometry():
    """Against the distance of a point from a capsule, and MuJoCo's own of a ball and a cylinder."""
    compiled = physics.watched("ball_stopping.xml", physics.BALL_STOPPING_SENSORS)
    data = mujoco.MjData(compiled)
    rng = np.random.default_rng(0)
    for _ in range(50):
        data.qpos[JOINTS] = rng.uniform(-2, 2, 7)
        data.qpos[BALL] = rng.uniform([-0.5, -0.5, 0.5], [0.5, 0.5, 1.5])
        mujoco.mj_forward(compiled, data)
        ball, sensors = np.tile(data.qpos[BALL], (1, 2, 1)), np.tile(data.sensordata, (1, 2, 1))
        depth = physics.depth_in_arm(compiled, ball, sensors)[0, 0]
        nearest = []
        for link in LINKS:
            axis = data.geom(link).xmat.reshape(3, 3)[:, 2]
            offset = data.qpos[BALL] - data.geom(link).xpos
            radius, half_length = compiled.geom(link).size[:2]
            along = np.clip(offset @ axis, -half_length, half_length) * axis
            nearest.append(np.linalg.norm(offset - along) - radius - 0.2)
        base, ball_geom = compiled.geom("base").id, compiled.geom("ball").id
        nearest.append(mujoco.mj_geomDistance(compiled, data, base, ball_geom, 5.0, None))
        assert depth == pytest.approx(-min(nearest), abs=1e-6)


def test_what_is_watched_moves_as_the_task_does(stopping):
    task = BallStopping()
    for theta in stopping[:2]:
        path = task.trajectory(theta)
        references = joint_references(task.policy.trajectory(theta[None]))
        seen = physics.watch_ball_stopping(task.initial_state(np.random.default_rng(0))[None], references)
        np.testing.assert_array_equal(seen.before[0, : len(path), :14], path)


def test_returns_are_finite_far_from_the_start():
    for std in (0.0, 0.1, 6.0, 1e3, 1e12):
        assert np.isfinite(BallStopping(**WIDE).evaluate(parameters(30, std, seed=6), seed=1)).all()


def test_stopped_ball_stays_when_the_arm_freezes(stopping):
    for theta in stopping[:3]:
        _, _, episode = play(BallStopping(), theta)
        assert episode.outcome == STOPPED
        data = episode.simulation.data
        posture, place = data.qpos[JOINTS].copy(), data.qpos[BALL].copy()
        for _ in range(480):
            data.qpos[JOINTS], data.qvel[JOINTS], data.ctrl[:] = posture, 0, posture
            mujoco.mj_step(episode.simulation.model, data)
        assert np.linalg.norm(data.qpos[BALL] - place) < 1e-3


# -------------------------------------------------------------------------------------------- the reward


def recorded(heights, speeds, distances, touches):
    """States and sensors (1, K, ...) of a made-up episode."""
    states, sensors = np.zeros((1, len(heights), 27)), np.zeros((1, len(heights), 4))
    states[0, :, 9] = heights
    states[0, :, VELOCITY] = np.outer(speeds, [2 / 3, -2 / 3, 1 / 3])
    sensors[0, :, 1:] = np.outer(distances, [2 / 3, 1 / 3, 2 / 3])
    sensors[0, :, 0] = touches
    return states, sensors


def test_reward_before_and_after_the_touch():
    states, sensors = recorded([0.8] * 4, [3.0, 3.0, 1.5, 0.6], [1.0, 0.5, 0.3, 2.0], [0, 0, 1, 0])
    rewards, outcome, memory = judge(states, sensors, no_memory(1))
    expected = [-100 * 1.0, -100 * 0.25, -5 * 0.25, -5 * 0.04]  # a touch is not forgotten
    np.testing.assert_allclose(rewards[0] * 750, expected)
    assert outcome == GOING
    assert memory.touched
    assert memory.still == 0


def test_dropping_costs_and_ends():
    states, sensors = recorded([0.8, 0.71, 0.69, 0.6], [1.0] * 4, [1.0] * 4, [0] * 4)
    rewards, outcome, _ = judge(states, sensors, no_memory(1))
    np.testing.assert_allclose(rewards[0] * 750, [-100, -100, -20000, 0])
    assert outcome == DROPPED


def test_ten_slow_steps_in_a_row_after_a_touch_are_a_stop():
    slow, fast = 9e-5, 1e-4
    speeds = [slow] * 15 + [slow] * 9 + [fast] + [slow] * 12
    touches = [0] * 15 + [1] + [0] * 21
    states, sensors = recorded([0.8] * 37, speeds, [0.3] * 37, touches)
    rewards, outcome, _ = judge(states, sensors, no_memory(1))
    assert outcome == STOPPED
    assert np.flatnonzero(rewards[0] > 0).tolist() == [15 + 9 + 1 + 10 - 1]
    assert rewards.max() * 750 == pytest.approx(20000)
    assert (rewards[0, 35:] == 0).all()


def test_slow_ball_that_nothing_touched_has_not_been_stopped():
    states, sensors = recorded([0.8] * 30, [0.0] * 30, [0.3] * 30, [0] * 30)
    assert judge(states, sensors, no_memory(1)).outcome == GOING


def test_dropping_counts_for_more_than_standing_still():
    states, sensors = recorded([0.8] * 9 + [0.6], [0.0] * 10, [0.3] * 10, [1] * 10)
    assert judge(states, sensors, no_memory(1)).outcome == DROPPED


def test_reward_does_not_depend_on_where_an_episode_is_cut():
    rng = np.random.default_rng(0)
    for _ in range(50):
        count = 60
        speeds = np.where(rng.random(count) < 0.9, 1e-5, 1.0)
        heights = np.where(rng.random(count) < 0.005, 0.6, 0.8)
        states, sensors = recorded(heights, speeds, rng.random(count), rng.random(count) < 0.1)
        whole = judge(states, sensors, no_memory(1))
        for piece in (1, 7, 59):
            rewards, outcome, memory = np.zeros(count), GOING, no_memory(1)
            for start in range(0, count, piece):
                part = slice(start, start + piece)
                found, outcome, memory = judge(states[:, part], sensors[:, part], memory)
                rewards[part] = found[0]
                if outcome != GOING:
                    break
            np.testing.assert_array_equal(rewards, whole.rewards[0])
            assert outcome == whole.outcome


def test_doing_nothing_returns_what_its_path_says():
    task = BallStopping()
    path = task.trajectory(np.zeros(140))
    palm = np.array([0.39847109, 0, 1.16250235])
    # the distance is that at the beginning of a step
    distances = np.sum((path[:-1, BALL] - palm) ** 2, axis=1)
    rewards = np.append(-100 * distances[:-1], -20000) / 750
    expected = sum(0.99**step * reward for step, reward in enumerate(rewards))
    returns, success = task.evaluate(np.zeros((1, 140)), return_success=True)
    assert returns == pytest.approx(expected, abs=1e-4)
    assert not success[0]


# ------------------------------------------------------------------------- batches, single steps and seeds


@pytest.mark.parametrize("options", [{}, WIDE])
def test_batch_equals_plain_stepping_bit_by_bit(options):
    """Against a loop over mj_step that shares nothing with the task but the model and the start."""
    task, compiled, data = BallStopping(**options), model(), mujoco.MjData(model())
    theta, seeds = parameters(12, seed=7), np.arange(12)
    returns = task.evaluate(theta, seeds)
    references = START_POSTURE + 0.3 * task.policy.trajectory(theta)
    for row, episode_seed in enumerate(seeds):
        mujoco.mj_resetData(compiled, data)
        state = task.initial_state(np.random.default_rng(episode_seed))
        data.qpos[:], data.qvel[:] = state[:14], state[14:]
        states, sensors = [], []
        for reference in references[row]:
            data.ctrl[:] = reference
            mujoco.mj_step(compiled, data)
            states.append([*data.qpos, *data.qvel])
            sensors.append(data.sensordata.copy())
        verdict = judge(np.array(states)[None], np.array(sensors)[None], no_memory(1))
        assert discounted(verdict.rewards)[0] == returns[row]


def test_single_steps_give_the_rewards_of_the_batch(stopping):
    task = BallStopping(**WIDE)
    theta = np.concatenate([stopping[:2], parameters(3, seed=8)])
    returns, success = task.evaluate(theta, np.arange(5), return_success=True)
    for row in range(5):
        states, rewards, episode = play(task, theta[row], seed=row)
        assert discounted(np.append(rewards, np.zeros(HORIZON - len(rewards)))[None])[0] == returns[row]
        assert (episode.outcome == STOPPED) == success[row]
        path = task.trajectory(theta[row], [row])
        np.testing.assert_array_equal(path[1:], states[:, :14])
        assert (ball_height(states[:-1]) >= 0.7).all()


def test_returns_do_not_depend_on_threads_batch_or_order(stopping):
    theta = np.concatenate([stopping[:2], parameters(70, seed=9), parameters(8, 5.0, seed=9)])
    seeds = np.arange(80)
    returns, success = BallStopping(**WIDE).evaluate(theta, seeds, return_success=True)
    order = np.random.default_rng(0).permutation(80)
    shuffled = BallStopping(**WIDE, threads=2).evaluate(theta[order], seeds[order], return_success=True)
    np.testing.assert_array_equal(shuffled[0], returns[order])
    np.testing.assert_array_equal(shuffled[1], success[order])
    for part in (slice(0, 1), slice(1, 4), slice(60, 67)):
        np.testing.assert_array_equal(BallStopping(**WIDE).evaluate(theta[part], seeds[part]), returns[part])


def test_returns_do_not_depend_on_the_segments(monkeypatch, stopping):
    theta = np.concatenate([stopping[:2], parameters(6, seed=10)])
    returns = BallStopping().evaluate(theta)
    for segment in (1, 10, HORIZON):
        assert segment != SEGMENT
        monkeypatch.setattr("klimb.tasks.ball_stopping.SEGMENT", segment)
        np.testing.assert_array_equal(BallStopping().evaluate(theta), returns)


def test_broken_simulation_returns_nan(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its log where it stands

    def break_one(actions):
        references = joint_references(actions)
        references[1] = np.nan
        return references

    monkeypatch.setattr("klimb.tasks.ball_stopping.joint_references", break_one)
    returns, success = BallStopping().evaluate(parameters(3), return_success=True)
    np.testing.assert_array_equal(np.isnan(returns), [False, True, False])
    assert not success[1]


def test_fixed_ball_ignores_the_seed_and_a_random_one_does_not():
    theta = np.repeat(parameters(1), 3, axis=0)
    assert len(set(BallStopping().evaluate(theta, seed=1))) == 1
    noisy = BallStopping(ball="random").evaluate(theta, seed=1)
    assert len(set(noisy)) == 3
    np.testing.assert_array_equal(BallStopping(ball="random").evaluate(theta, seed=1), noisy)


def test_random_ball_keeps_within_its_spreads():
    task = BallStopping(**WIDE)
    states = np.array([task.initial_state(np.random.default_rng(seed)) for seed in range(500)])
    x, speed = states[:, 7], ball_speed(states)
    direction = np.arctan2(states[:, 21], -states[:, 22])
    for values, low, high in ((x, 0.4, 0.6), (speed, 2, 4), (direction, -math.pi / 18, math.pi / 18)):
        assert low <= values.min() < low + 0.05 * (high - low)
        assert high >= values.max() > high - 0.05 * (high - low)


def test_an_episode_that_is_reset_starts_afresh(stopping):
    task = BallStopping()
    episode = BallStoppingEpisode(task)
    runs = []
    for theta in (stopping[0], parameters(1)[0], stopping[0]):
        seen = episode.reset(np.random.default_rng(0))
        assert episode.outcome == GOING
        assert not episode.touched
        rewards = []
        for action in task.policy.trajectory(theta[None])[0]:
            np.testing.assert_array_equal(seen, observation(episode.state))
            seen, reward, over = episode.step(action)
            rewards.append(reward)
            if over:
                break
        runs.append(rewards)
    assert runs[0] == runs[2] != runs[1]
    assert episode.touched


def test_observation_is_joints_their_speeds_ball_and_its_orientation():
    state = np.arange(27.0)
    np.testing.assert_array_equal(observation(state), [*range(7), *range(14, 21), *range(7, 14)])


def test_returns_are_discounted():
    rewards = np.arange(12.0).reshape(2, 6)
    expected = [sum(DISCOUNT**step * reward for step, reward in enumerate(row)) for row in rewards]
    np.testing.assert_allclose(discounted(rewards), expected)


def test_what_a_task_says_of_itself():
    task = BallStopping()
    assert (task.n_parameters, task.initial_std, task.optimum) == (140, 1.0, None)
    assert task.evaluate(np.empty((0, 140))).shape == (0,)
    assert task == BallStopping(ball="fixed")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ball": "rolling"}, "ball must be one of 'fixed', 'random', but 'rolling' came"),
        ({"x_spread": -0.1}, "x_spread must be a number from 0 to 0.5, but -0.1 came"),
        ({"speed_spread": 1.0}, "speed_spread must be a number from 0 to 0.99, but 1.0 came"),
        ({"direction_spread": math.nan}, "direction_spread must be a number from 0 to 1.571, but nan came"),
        ({"threads": 0}, "threads must be a whole number of at least 1, but 0 came"),
    ],
)
def test_settings_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BallStopping(**options)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"theta must .*\(N, 140\)"):
        BallStopping().evaluate(np.zeros((2, 90)))
    with pytest.raises(ValueError, match=r"theta must .*\(N, 140\)"):
        BallStopping().trajectory(np.zeros(90))
    with pytest.raises(ValueError, match="action must have 7 entries, one per joint, but 3 came"):
        BallStoppingEpisode(BallStopping()).step(np.zeros(3))
