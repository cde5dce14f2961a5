"""A search by the surrogate that has come to its end looks around and begins anew; what it found is kept."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import klimb
from klimb.cli import app
from klimb.gaussian import diagonal
from klimb.search import ask, tell
from klimb.state import Found, State
from klimb.surrogate.learning import first_memory
from klimb.surrogate.turns import at_end, leads_back, next_turn
from klimb.updates import UpdateInfo

FLAT = np.tile([1.0, -1.0], 50)
KEPT = klimb.auto().sized(4).keeps(4, noisy=False)


def rugged(theta):
    return -np.sum(theta**2 + 10 - 10 * np.cos(2 * math.pi * theta), axis=1)


def until_anew(optimizer, f, episodes):
    """Run it until it begins anew: how many episodes that took, None if it did not."""
    attempt = optimizer.attempt
    for spent in range(0, episodes, 8):
        theta = optimizer.ask(8)
        optimizer.tell(theta, f(theta))
        if optimizer.attempt > attempt:
            return spent + 8
    return None


@pytest.fixture
def ended():
    """An optimizer that has just begun anew in a rugged landscape."""
    optimizer = klimb.Optimizer(mean=np.full(8, 2.3), std=2.0, seed=1)
    assert until_anew(optimizer, rugged, 2000) is not None
    return optimizer


def test_the_end_is_where_returns_are_alike_and_no_better_than_before():
    assert at_end(50 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0)
    assert not at_end(50 + 0.6 * FLAT, 50 + 0.6 * FLAT, 0.0)  # closing in may gain more than a hundredth
    assert not at_end(49.8 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0)  # 3.5 standard errors better
    assert at_end(49.9 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0)  # 1.8 of them
    assert at_end(51 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0)  # worse


def test_what_is_explained_is_at_its_end_only_where_the_rest_is_rounding_or_it_was_better_before():
    assert not at_end(51 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0, explained=True)
    assert at_end(50 + 1e-6 * FLAT, 50 + 1e-11 * FLAT, 0.0, explained=True)
    assert at_end(50 + 0.4 * FLAT, 50 + 0.4 * FLAT, 0.0, found=60.0, explained=True)


def test_what_differs_by_rounding_is_at_its_end_even_if_it_gets_better():
    assert at_end(50 + 1e-6 * FLAT, 50 + 1e-11 * FLAT + 1e-5, 0.0)
    assert not at_end(50 + 1e-6 * FLAT, 50 + 1e-10 * FLAT + 1e-5, 0.0)


@pytest.mark.parametrize("first", [50.0, 60.0, math.nan, math.inf])
def test_what_has_gained_nothing_or_is_not_known_to_have_is_not_at_its_end(first):
    assert not at_end(50 + 0 * FLAT, 50 + 0 * FLAT, first)


@given(st.integers(0, 2**32 - 1), st.floats(-300, 290), st.floats(-1e3, 1e3))
def test_whether_it_is_the_end_does_not_hang_on_units(seed, exponent, offset):
    rng = np.random.default_rng(seed)
    spread, better = rng.uniform(0.1, 2.0), rng.uniform(-0.5, 0.5)
    earlier, later = (rng.standard_normal(100) * spread + level for level in (50.0, 50.0 + better))
    unit = 2.0 ** round(exponent * math.log2(10))
    wanted = at_end(earlier, later, 0.0)
    assert at_end(unit * earlier, unit * later, 0.0) == wanted
    if spread < 0.45 or spread > 0.6:  # an offset rounds
        error = spread * math.sqrt(2 / 100)
        if abs(later.mean() - earlier.mean() - 2 * error) > 0.5 * error:
            assert at_end(earlier + offset, later + offset, offset) == wanted


def test_one_that_falls_short_of_what_was_found_is_at_its_end_once_it_has_closed_in():
    creeping = 49.0 + 0.4 * FLAT, 50 + 0.4 * FLAT
    assert at_end(*creeping, 0.0, found=54.1)
    assert not at_end(*creeping, 0.0, found=53.9)  # 10 standard deviations are missing
    assert not at_end(*creeping, 0.0)
    assert not at_end(49 + 0.6 * FLAT, 50 + 0.6 * FLAT, 0.0, found=1e9)


def test_it_looks_around_from_what_it_found_as_widely_as_it_began_and_with_other_random_numbers(ended):
    first = klimb.Optimizer(mean=np.full(8, 2.3), std=2.0, seed=1).ask(100)
    again = ended.ask(100)
    assert ended.state.looking
    np.testing.assert_array_equal(ended.state.belief.mean, ended.mean)
    assert not np.isclose(ended.mean, 2.3).any()
    np.testing.assert_allclose(ended.state.belief.std, 2.0)
    assert not np.isclose((first - 2.3)[2:], (again - ended.mean)[2:]).any()


def looked_around(optimizer, f):
    """Let it look around until it closes in: how many episodes that took, and all that it tried."""
    tried = []
    while optimizer.state.looking:
        tried.append(optimizer.ask(8))
        optimizer.tell(tried[-1], f(tried[-1]))
    return 8 * len(tried), np.vstack(tried)


def test_it_looks_around_widely_while_what_it_knows_closes_in_on_what_is_beneath_the_ruggedness(ended):
    spent, tried = looked_around(ended, rugged)
    assert spent == 600
    assert tried[-200:].std(0).min() > 1.0  # nearly as widely as at first
    looked = ended.state.aside
    assert looked.belief.std.max() < 0.5
    assert np.abs(looked.belief.mean).max() < 1.0  # the optimum is at 0, the search began at 2.3
    assert np.allclose(ended.state.belief.std, 1.5 * looked.belief.std)
    assert np.array_equal(ended.state.belief.mean, looked.belief.mean)
    again = ended.ask(8)
    assert np.array_equal(again[0], again[1])  # the mean, run twice, as at first


def test_the_next_look_goes_on_where_this_one_stopped_and_is_twice_as_long(ended):
    looked_around(ended, rugged)
    looked = ended.state.aside
    assert until_anew(ended, rugged, 2000) is not None
    assert ended.attempt == 2
    assert ended.state.looking
    assert np.array_equal(ended.state.belief.mean, looked.belief.mean)
    assert np.array_equal(ended.state.kept.returns, looked.kept.returns)
    assert looked_around(ended, rugged)[0] == 1200
    assert np.all(ended.state.aside.belief.std < looked.belief.std)


def test_the_best_belief_is_what_counts_whatever_becomes_of_later_attempts(ended):
    found = ended.state.found
    assert ended.belief is found.belief
    assert np.all(ended.std < 1e-3)
    ahead = []
    for _ in range(300):
        before = ended.state.found
        theta = ended.ask(8)
        ended.tell(theta, rugged(theta))
        state = ended.state
        assert state.found.level >= before.level
        assert ended.belief is (state.belief if state.ahead else state.found.belief)
        if state.ahead:
            assert state.kept.returns[-100:].mean() > state.found.level
        ahead.append(state.ahead)
    assert any(ahead)
    assert not all(ahead)


def test_the_deepest_of_many_valleys_is_found_by_looking_around():
    first, last = [], []
    for seed in range(6):
        optimizer = klimb.Optimizer(mean=np.full(4, 2.3), std=2.0, seed=seed)
        spent = until_anew(optimizer, rugged, 4000)
        first.append(optimizer.state.found.level)
        for _ in range((4000 - spent) // 8):
            theta = optimizer.ask(8)
            optimizer.tell(theta, rugged(theta))
        last.append(rugged(optimizer.mean[None])[0])
    assert np.mean(first) < -2.0
    assert np.all(np.array(last) >= np.array(first) - 1e-9)
    assert np.median(last) > -1e-6
    assert np.min(last) > -1.1  # 1 for every parameter that is beside it


@pytest.mark.parametrize("seed", [1, 7, 9, 13])
def test_a_search_that_lost_its_way_in_a_bowl_goes_on(seed):
    """With these seeds it gets worse for a while, which had been taken for the end: 1e4 was left."""
    task = klimb.make_task("ellipsoid", n_parameters=20, n_effective=10, rotated=True)
    optimizer = klimb.Optimizer(mean=np.zeros(20), std=task.initial_std, seed=seed)
    until_anew(optimizer, task.evaluate, 1000)
    assert task.evaluate(optimizer.mean[None])[0] > -1e-3


def test_a_search_that_creeps_along_a_valley_goes_on():
    task = klimb.make_task("rosenbrock", n_parameters=20, n_effective=20)
    optimizer = klimb.Optimizer(mean=np.zeros(20), std=task.initial_std, seed=0)
    assert until_anew(optimizer, task.evaluate, 1500) is None
    assert -19 < task.evaluate(optimizer.mean[None])[0] < -5


def noisily(f, seed):
    rng = np.random.default_rng(seed)
    return lambda theta: f(theta) + rng.standard_normal(len(theta))


def test_with_noise_a_search_that_sees_no_valleys_goes_on():
    optimizer = klimb.Optimizer(mean=np.full(8, 2.3), std=1.0, seed=1)
    assert until_anew(optimizer, noisily(lambda theta: -np.square(theta).sum(1), 0), 1600) is None
    assert optimizer.state.rough < 0.3


def test_with_noise_a_search_among_valleys_looks_around_and_finds_the_deepest_or_the_one_beside_it():
    first, last = [], []
    for seed in range(8):
        f = noisily(rugged, seed)
        optimizer = klimb.Optimizer(mean=np.full(4, 2.3), std=2.0, seed=seed)
        assert until_anew(optimizer, f, 2000) == 600
        first.append(rugged(optimizer.mean[None])[0])
        for _ in range((2000 - 600) // 8):
            theta = optimizer.ask(8)
            optimizer.tell(theta, f(theta))
        last.append(rugged(optimizer.mean[None])[0])
    assert np.mean(first) < -3.0
    assert np.median(last) > -0.1
    beside = np.sort(last)  # 1 for every parameter that is beside it
    assert beside[1] > -1.1
    assert beside[0] > -2.1


@pytest.fixture
def interrupted():
    """A search in noise that has looked around for as long as it takes to see how rough the landscape is."""
    optimizer = klimb.Optimizer(mean=np.full(4, 2.3), std=2.0, seed=0)
    f = noisily(rugged, 0)
    until_anew(optimizer, f, 2000)
    for _ in range(36):
        theta = optimizer.ask(8)
        optimizer.tell(theta, f(theta))
    assert optimizer.state.spent == 288
    return optimizer.state


def test_a_search_that_was_interrupted_goes_on_where_there_are_no_valleys_after_all(interrupted):
    assert interrupted.aside.spent == 600
    assert interrupted.rough > 0.3
    state = next_turn(replace(interrupted, spent=304, rough=0.29), KEPT, 8, UpdateInfo())
    assert not state.looking
    assert state.belief is interrupted.aside.belief
    assert state.kept is interrupted.aside.kept
    assert (state.attempt, state.found, state.ahead, state.rough) == (0, None, True, 0.0)
    assert state.iteration == interrupted.iteration


def seen(looker, away):
    """This one at the end of its look, with what was found so many standard deviations away from its mean."""
    z = np.full(4, away)
    there = looker.belief.shaped(z[None], np.sqrt(looker.belief.variances))[0]
    found = replace(looker.found.belief, mean=there)
    return replace(looker, spent=600, found=replace(looker.found, belief=found))


def test_and_stands_aside_as_long_as_there_are_some(interrupted):
    state = next_turn(replace(interrupted, spent=304), KEPT, 8, UpdateInfo())
    assert state.looking
    assert state.aside is interrupted.aside
    assert state.found.belief is interrupted.aside.belief


def test_it_is_given_up_where_the_look_has_led_elsewhere(interrupted):
    state = next_turn(seen(interrupted, 1.1), KEPT, 8, UpdateInfo())
    assert not state.looking
    assert state.attempt == 1
    np.testing.assert_array_equal(state.belief.mean, interrupted.belief.mean)
    assert state.aside.looking
    assert state.aside.aside is None


def test_and_goes_on_where_the_look_has_led_back_to_it(interrupted):
    state = next_turn(seen(interrupted, 0.9), KEPT, 8, UpdateInfo())
    assert not state.looking
    assert state.belief is interrupted.aside.belief
    assert (state.attempt, state.aside, state.rough) == (0, None, 0.0)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_look_leads_back_to_what_is_within_it_where_it_matters(seed, full):
    rng = np.random.default_rng(seed)
    n = 5
    scales, z = rng.uniform(0.1, 10, n), rng.uniform(-2, 2, n)
    belief = diagonal(rng.standard_normal(n), scales)
    found = Found(diagonal(belief.mean + scales * z, np.ones(n)), 0.0)
    A = rng.standard_normal((n, n))
    W = A @ A.T if full else rng.uniform(0, 1, n)
    W /= np.trace(W) if full else W.sum()
    memory = first_memory(n, full)._replace(relevance=W)
    looker = State(belief, looking=True, found=found, memory=tuple(memory))
    near = float(z @ W @ z) if full else float(W @ z**2)
    assert leads_back(looker) == (near <= 1)


def lucky(theta):
    """Returns that nothing explains, the same for the same parameters; a tenth of them are far better."""
    wave = np.sin(1e4 * theta @ np.sqrt(np.arange(1, 9)))
    return np.where(wave > 0.95, 8.0, 0.0) + wave


def test_that_good_returns_are_rare_is_remembered_where_nothing_is_explained_and_nothing_is_noise(tmp_path):
    rng = np.random.default_rng(0)
    remembered = []
    for f in (lucky, rugged, lambda theta: lucky(theta) + rng.standard_normal(len(theta))):
        optimizer = klimb.Optimizer(mean=np.full(8, 2.3), std=2.0, seed=1)
        for _ in range(20):
            theta = optimizer.ask(8)
            optimizer.tell(theta, f(theta))
        optimizer.save(tmp_path / "state")
        assert klimb.Optimizer.load(tmp_path / "state").state.rare == optimizer.state.rare
        remembered.append(optimizer.state.rare)
    assert remembered == [True, False, False]


def test_a_look_that_explains_nothing_walks_towards_the_better_ones_where_good_returns_were_rare():
    walked = []
    for rare in (True, False):
        search, start = klimb.auto().sized(8), diagonal(np.zeros(8), np.full(8, 2.0))
        state = State(start, attempt=1, looking=True, found=Found(start, 0.0), rare=rare)
        far = []
        for _ in range(74):
            theta = ask(search, state, 1, 0, 8)
            state, _ = tell(search, state, theta, lucky(theta), 1)
            far.append(float(np.linalg.norm(state.belief.mean)))
        assert state.looking
        walked.append(far)
    assert walked[0][:24] == walked[1][:24]  # not before the surrogate had its chance: 200 episodes
    assert walked[0][-1] > 2 * walked[1][-1]
    theta = ask(search, state, 1, 0, 8)
    state, _ = tell(search, replace(state, rare=True), theta, lucky(theta), 1)
    assert not state.looking
    assert state.rare
    assert state.aside.rare


def test_the_mean_run_twice_is_what_counts_in_noise(interrupted):
    """Samples are drawn wider than the belief, and return less."""
    kept = interrupted.aside.kept
    later = kept.returns[200:]
    assert interrupted.found.level == later[np.isin(kept.twin[200:], (2, 3))].mean()
    assert interrupted.found.level > later.mean()


def test_nor_is_it_where_nearly_all_episodes_are_new():
    optimizer = klimb.Optimizer(mean=np.full(8, 2.3), std=1.0, seed=1)
    for _ in range(60):
        theta = optimizer.ask(100)
        optimizer.tell(theta, rugged(theta))
    assert optimizer.attempt == 0


def test_other_algorithms_do_not_begin_anew():
    optimizer = klimb.Optimizer(klimb.dr_creps(reuse=20), mean=np.full(8, 2.3), std=1.0, seed=1)
    assert until_anew(optimizer, rugged, 2000) is None


def test_a_file_holds_the_attempt_and_what_was_found(ended, tmp_path):
    ended.tell(ended.ask(8), np.arange(8.0))
    ended.save(tmp_path / "state")
    loaded = klimb.Optimizer.load(tmp_path / "state")
    assert loaded.attempt == 1
    assert not loaded.state.ahead
    assert loaded.state.found.level == ended.state.found.level
    assert loaded.state.start.level == ended.state.start.level
    assert loaded.state.looking
    assert loaded.state.spent == 8
    assert np.array_equal(loaded.mean, ended.mean)
    assert np.array_equal(loaded.covariance, ended.covariance)
    assert np.array_equal(loaded.ask(8), ended.ask(8))


def test_a_file_holds_what_stands_aside(ended, tmp_path):
    looked_around(ended, rugged)
    theta = ended.ask(8)
    ended.tell(theta, rugged(theta))
    ended.save(tmp_path / "state")
    loaded = klimb.Optimizer.load(tmp_path / "state")
    assert np.array_equal(loaded.state.aside.kept.theta, ended.state.aside.kept.theta)
    assert loaded.state.aside.looking
    for optimizer in (loaded, ended):
        assert until_anew(optimizer, rugged, 2000) is not None
    assert np.array_equal(loaded.ask(8), ended.ask(8))


def saved_by_an_earlier_version(path, change):
    """An optimizer after an update, and the same from its file after a `change` of header and arrays."""
    optimizer = klimb.Optimizer(mean=np.full(8, 2.3), std=1.0, seed=1)
    theta = optimizer.ask(8)
    optimizer.tell(theta, rugged(theta))
    optimizer.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    change(header, arrays)
    with path.open("wb") as file:
        np.savez(file, header=np.array(json.dumps(header)), **arrays)
    return optimizer, klimb.Optimizer.load(path)


def remembered_before(arrays, ranks):
    """What was remembered when parameters were weighed as well, and before that of values alone."""
    relevance, amplitudes, spread, way, rest = (arrays.pop(f"memory_{index}") for index in range(5))
    if not ranks:
        amplitudes, spread = amplitudes[0], spread[:1]
    return relevance, np.ones(8), amplitudes, spread, way, rest


def test_a_file_of_before_is_read_and_goes_on_without_beginning_anew(tmp_path):
    def change(header, arrays):
        for name in ("attempt", "found", "ahead", "start", "looking", "aside", "spent", "rough", "rare"):
            del header[name]
        header["version"] = 2
        del arrays["start_mean"]
        memory = (*remembered_before(arrays, ranks=False)[:4], arrays.pop("start_std"))
        arrays.update({f"memory_{index}": array for index, array in enumerate(memory)})

    optimizer, earlier = saved_by_an_earlier_version(tmp_path / "state", change)
    assert np.array_equal(earlier.ask(8), optimizer.ask(8))
    assert np.array_equal(earlier.state.start.std, np.ones(8))
    assert until_anew(earlier, rugged, 2000) is None


@pytest.mark.parametrize("version", [4, 5])
def test_what_a_file_of_before_remembers_is_learned_anew(tmp_path, version):
    def change(header, arrays):
        header["version"] = version
        memory = remembered_before(arrays, ranks=version == 5)
        arrays.update({f"memory_{index}": array for index, array in enumerate(memory)})

    optimizer, earlier = saved_by_an_earlier_version(tmp_path / "state", change)
    theta = optimizer.ask(8)
    assert np.array_equal(earlier.ask(8), theta)
    earlier.tell(theta, rugged(theta))
    assert earlier.iteration == 2


def test_a_study_goes_on_to_the_bit_within_a_later_attempt(tmp_path):
    task = klimb.make_task("rastrigin", n_parameters=4)

    def run(path, episodes):
        with klimb.Study(path) as study:
            return study.run(task, episodes=episodes)

    for name in ("whole", "pieces"):
        klimb.Study.create(tmp_path / name, klimb.auto(), mean=np.zeros(4), std=2.0, batch=8, seed=0).close()
    result = run(tmp_path / "whole", 1000)
    run(tmp_path / "pieces", 904)
    again = run(tmp_path / "pieces", 1000)
    assert result.optimizer.attempt > 0
    assert np.array_equal(result.mean, again.mean)
    assert np.array_equal(result.optimizer.ask(8), again.optimizer.ask(8))


def test_samples_out_of_bounds_are_drawn_again_from_where_the_search_is(tmp_path):
    start = {"mean": np.full(4, 2.3), "low": 1.5, "high": 3.0, "std": 1.0, "batch": 8, "seed": 0}
    with klimb.Study.create(tmp_path / "study", klimb.auto(), **start) as study:
        task = klimb.make_task("rastrigin", n_parameters=4)
        spent = 0
        while study.run(task, episodes=spent + 8).optimizer.attempt == 0 and spent < 2000:
            spent += 8
        asked = study.ask_many(40)
    again = np.array([episode.parameters for episode in asked if episode.bounds == "resampled"])
    assert spent < 2000
    assert len(again) > 10
    assert again.std(0).min() > 0.3  # within the bounds as widely as at first


def test_the_command_line_says_how_often():
    words = ["run", "rastrigin", "--option", "n_parameters=4", "--episodes", "600"]
    for options, wanted in (([], "begun anew"), (["--json"], '"attempt": 1')):
        result = CliRunner().invoke(app, [*words, *options])
        assert result.exit_code == 0
        assert wanted in result.stdout
