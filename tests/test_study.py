"""Studies from Python: what is asked, told, kept and learned."""

import csv
import json
import shutil
import sqlite3
import sys
from contextlib import suppress

import numpy as np
import pytest
from conftest import dense, random_gaussian
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

import klimb
from klimb.study import file as study_file
from klimb.study.bounds import conditional, redraw, truncated_normal

NAMES = ["hip", "knee", "ankle"]


def good_return(theta):
    return -float(np.square(np.asarray(theta) - 1.0).sum())


def make(path, algorithm=None, **settings):
    settings = {"mean": np.zeros(3), "std": 1.0, "batch": 6, "seed": 0} | settings
    return klimb.Study.create(path, algorithm or klimb.creps(epsilon=0.5, kappa=1.0), **settings)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arm.db"


@pytest.fixture
def study(path):
    with make(path) as study:
        yield study


def advance(study, count, f=good_return):
    episodes = []
    for _ in range(count):
        episodes.append(study.ask())
        study.tell(episodes[-1], f(episodes[-1].parameters))
    return episodes


def rows(study, columns="*", table="episodes"):
    """Rows as another program sees them."""
    connection = sqlite3.connect(study.path)
    try:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()
    finally:
        connection.close()


class Noisy:
    """A task whose returns depend on the seed; some episodes fail."""

    n_parameters, optimum, initial_std = 3, None, 1.0

    def __init__(self, failing=0.1):
        self.failing = failing

    def evaluate(self, theta, seed=0):
        seeds = klimb.tasks.episode_seeds(seed, len(theta))
        draws = np.array([np.random.default_rng(int(number)).random(2) for number in seeds])
        returns = -np.square(np.asarray(theta) - 1.0).sum(axis=1) + draws[:, 0]
        return np.where(draws[:, 1] < self.failing, np.nan, returns)


# the same learning as without a file


@pytest.mark.parametrize("name", ["dr-creps", "creps", "reps-pe", "more", "nes", "es", "pro", "cem"])
def test_asking_and_telling_one_by_one_is_what_an_optimizer_does(path, name):
    settings = {"n_elite": 4} if name == "cem" else {}
    algorithm = klimb.make_algorithm(name, **settings)
    optimizer = klimb.Optimizer(algorithm, mean=np.zeros(3), std=1.0, seed=5)
    with make(path, algorithm, seed=5) as study:
        for _ in range(4):
            theta = optimizer.ask(6)
            expected = optimizer.tell(theta, [good_return(row) for row in theta])
            for row in theta[:-1]:
                episode = study.ask()
                np.testing.assert_array_equal(episode.parameters, row)
                assert study.tell(episode, good_return(row)) is None
            info = study.tell(study.ask(), good_return(theta[-1]))
            assert info.kl == expected.kl
        assert study.optimizer.to_bytes() == optimizer.to_bytes()
        assert [row[0] for row in rows(study, "kl", "updates")] != []


@pytest.mark.parametrize("failing", [0.0, 0.2, 0.9])
def test_run_is_what_maximize_does(path, failing):
    task = Noisy(failing)
    start = {"mean": np.zeros(3), "std": 1.0, "seed": 3, "batch": 6}
    expected = klimb.maximize(task, klimb.dr_creps(), episodes=125, **start)
    with klimb.Study.create(path, klimb.dr_creps(), **start) as study:
        result = study.run(task, episodes=125)
        np.testing.assert_array_equal(result.mean, expected.mean)
        np.testing.assert_array_equal(result.curve, expected.curve)
        np.testing.assert_array_equal(result.best_parameters, expected.best_parameters)
        assert result.best_return == expected.best_return
        assert (result.episodes, result.n_failed) == (expected.episodes, expected.n_failed)


def test_run_goes_on_where_it_stopped_and_takes_up_what_was_pending(tmp_path):
    with make(tmp_path / "one.db") as one, make(tmp_path / "two.db") as two:
        whole = one.run(Noisy(), episodes=60)
        two.run(Noisy(), episodes=30)
        two.ask_many(6)  # a run that was killed while it simulated
        parts = two.run(Noisy(), episodes=60)
        np.testing.assert_array_equal(whole.curve, parts.curve)
        assert one.optimizer.to_bytes() == two.optimizer.to_bytes()
        columns = 'episode, iteration, position, status, return, seed, parameters, "update"'
        assert rows(one, columns) == rows(two, columns)


def test_run_takes_a_plain_function_and_a_callback_ends_it(study):
    seen = []

    def stop(progress):
        seen.append(progress)
        return len(seen) == 2

    result = study.run(good_return, episodes=600, callback=stop)
    assert result.episodes == 12
    assert [progress.episodes for progress in seen] == [6, 12]
    assert seen[1].best_return == result.best_return


def test_run_without_a_good_episode_says_so(study):
    with pytest.raises(klimb.StudyError, match="0 of 12 episodes were good"):
        study.run(lambda theta: np.nan, episodes=12)


def test_samples_do_not_depend_on_how_they_are_asked_for(tmp_path):
    with make(tmp_path / "one.db") as one, make(tmp_path / "many.db") as many:
        singly = [one.ask() for _ in range(9)]
        at_once = many.ask_many(4) + many.ask_many(5)
        for a, b in zip(singly, at_once, strict=True):
            np.testing.assert_array_equal(a.parameters, b.parameters)
            assert (a.id, a.seed, a.iteration) == (b.id, b.seed, b.iteration)
        assert len({episode.seed for episode in singly}) == 9


def test_opening_again_goes_on_to_the_bit(tmp_path):
    with make(tmp_path / "kept.db") as kept:
        make(tmp_path / "again.db").close()
        for _ in range(20):
            with klimb.Study(tmp_path / "again.db") as again:
                a, b = kept.ask(), again.ask()
                np.testing.assert_array_equal(a.parameters, b.parameters)
                kept.tell(a, good_return(a.parameters))
                again.tell(b.id, good_return(b.parameters))
        with klimb.Study(tmp_path / "again.db") as again:
            assert again.optimizer.to_bytes() == kept.optimizer.to_bytes()


# episodes that come late, fail, or never come back


def test_no_robot_idles_and_late_results_go_into_the_next_update(study):
    asked = study.ask_many(9)
    for episode in asked[3:8]:
        assert study.tell(episode, good_return(episode.parameters)) is None
    assert study.tell(asked[8], good_return(asked[8].parameters)).n_used == 6
    for episode in asked[:3]:
        study.tell(episode, good_return(episode.parameters))
    later = advance(study, 3)
    assert [episode.iteration for episode in later] == [1, 1, 1]
    used = dict(rows(study, 'episode, "update"'))
    assert [number for number, update in used.items() if update == 1] == [4, 5, 6, 7, 8, 9]
    assert [number for number, update in used.items() if update == 2] == [1, 2, 3, 10, 11, 12]


def test_order_of_tells_does_not_matter(tmp_path):
    with make(tmp_path / "a.db") as a, make(tmp_path / "b.db") as b:
        for study, order in ((a, range(6)), (b, [5, 2, 0, 1, 4, 3])):
            asked = study.ask_many(6)
            for place in order:
                study.tell(asked[place], good_return(asked[place].parameters))
        assert a.optimizer.to_bytes() == b.optimizer.to_bytes()


def test_failed_episodes_are_left_out_and_the_batch_goes_on_with_what_it_has(study):
    asked = study.ask_many(6)
    optimizer = study.optimizer
    for episode in asked[:4]:
        study.tell(episode, good_return(episode.parameters))
    study.fail(asked[4], "motor fault", extra={"joint": 3})
    info = study.fail(asked[5].id, "fell")
    assert (info.n_used, info.n_failed) == (4, 2)
    theta = np.array([episode.parameters for episode in asked[:4]])
    optimizer.tell(theta, [good_return(row) for row in theta])
    np.testing.assert_array_equal(study.optimizer.mean, optimizer.mean)
    assert study.status().failures == [(6, "fell"), (5, "motor fault")]
    assert study.status().failed == 2


def test_all_pending_can_be_declared_failed_at_once(study):
    asked = study.ask_many(6)
    for episode in asked[:3]:
        study.tell(episode, good_return(episode.parameters))
    assert study.overdue(0) == [4, 5, 6]
    assert study.overdue(100) == []
    assert study.fail(study.overdue(0), "power cut").n_used == 3


def test_too_few_good_episodes_wait_for_more(study):
    study.fail(study.ask_many(6), "fell")
    assert study.tell(study.ask(), 1.0) is None
    assert study.status().settled == 7
    assert study.tell(study.ask(), 2.0).n_used == 2


def test_a_failed_episode_is_retried_if_the_user_says_so(study):
    first = study.ask()
    study.fail(first, "fell")
    assert study.retry(first) == 2
    with pytest.raises(ValueError, match="retried already, as episode 2"):
        study.retry(first)
    again = study.ask()
    assert again.id == 2
    np.testing.assert_array_equal(again.parameters, first.parameters)
    assert again.seed != first.seed
    study.tell(again, -1.0)
    status = study.status()
    assert (status.done, status.failed, status.settled) == (1, 1, 1)
    assert status.failures == [(1, "fell")], "nothing is forgotten"
    with pytest.raises(ValueError, match="only a failed episode can be retried, but episode 2 is done"):
        study.retry(2)


def test_retried_after_the_update_it_goes_into_the_next(study):
    asked = study.ask_many(6)
    for episode in asked[1:]:
        study.tell(episode, good_return(episode.parameters))
    assert study.fail(asked[0], "fell").n_used == 5
    assert study.retry(1) == 7
    np.testing.assert_array_equal(study.ask().parameters, asked[0].parameters)
    study.tell(7, 0.5)
    advance(study, 5)
    used = dict(rows(study, 'episode, "update"'))
    assert (used[1], used[7]) == (1, 2)


def test_lost_episodes_are_handed_out_again_when_asked_for(study):
    lost = study.ask()
    assert study.ask().id == 2
    assert study.ask(reissue_after=3600).id == 3
    again = study.ask(reissue_after=0)
    assert again.id == lost.id
    np.testing.assert_array_equal(again.parameters, lost.parameters)
    connection = sqlite3.connect(study.path)
    with connection:
        connection.execute("UPDATE trials SET asked = '2020-01-01T00:00:00.000000Z' WHERE id = 2")
    connection.close()
    assert study.ask(reissue_after=600).id == 2
    pending = {one.episode: one.issued for one in study.status().pending}
    assert pending == {1: 2, 2: 2, 3: 1}


@pytest.mark.parametrize("seconds", [-1, np.nan, np.inf, "10m", True])
def test_a_time_that_is_none_is_refused(study, seconds):
    with pytest.raises(ValueError, match="reissue_after"):
        study.ask(reissue_after=seconds)


def test_an_imported_failure_can_be_run_by_the_robot(path, tmp_path):
    (tmp_path / "old.csv").write_text("p0,p1,p2,return\n1,2,3,\n")
    with make(path) as study:
        study.import_csv(tmp_path / "old.csv")
        study.retry(1)
        assert study.ask().parameters.tolist() == [1, 2, 3]


# repeats


def test_repeats_share_parameters_and_their_mean_is_told(path):
    with make(path, repeats=3, batch=2) as study:
        asked = study.ask_many(6)
        assert [episode.repeat for episode in asked] == [0, 1, 2, 0, 1, 2]
        assert len({episode.seed for episode in asked}) == 6
        for one in asked[1:3]:
            np.testing.assert_array_equal(one.parameters, asked[0].parameters)
        returns = [1.0, 2.0, 6.0, 5.0, 5.0, 8.0]
        optimizer = study.optimizer
        for episode, value in zip(asked[:-1], returns, strict=False):
            assert study.tell(episode, value) is None
        study.tell(asked[-1], returns[-1])
        optimizer.tell(np.array([asked[0].parameters, asked[3].parameters]), [3.0, 6.0])
        assert study.optimizer.to_bytes() == optimizer.to_bytes()
        assert [row[0] for row in rows(study, "return", "episodes")] == sorted(returns)
        status = study.status()
        assert (status.done, status.best_return, status.best_episode) == (6, 6.0, 4)


def test_repeats_that_were_not_handed_out_yet_come_first(path):
    with make(path, repeats=2, batch=2) as study:
        assert [study.ask().id for _ in range(3)] == [1, 2, 3]
        assert [one.since is None for one in study.status().pending] == [False, False, False, True]
        assert study.ask().repeat == 1


def test_a_failed_repeat_leaves_the_mean_of_the_others(path):
    with make(path, repeats=2, batch=2) as study:
        optimizer = study.optimizer
        asked = study.ask_many(6)
        study.tell(asked[0], 1.0)
        study.fail(asked[1], "fell")
        study.fail(asked[2:4], "fell")
        study.tell(asked[4], 2.0)
        info = study.tell(asked[5], 4.0)
        assert (info.n_used, info.n_failed) == (2, 1)
        optimizer.tell(np.array([asked[0].parameters, asked[4].parameters]), [1.0, 3.0])
        np.testing.assert_array_equal(study.optimizer.mean, optimizer.mean)


# bounds


def test_samples_outside_are_resampled_and_only_those(tmp_path):
    with make(tmp_path / "free.db") as free, make(tmp_path / "bound.db", low=-0.8, high=[0.5, 1, 9]) as bound:
        a, b = free.ask_many(200), bound.ask_many(200)
        low, high = np.full(3, -0.8), np.array([0.5, 1, 9])
        kinds = {"inside": 0, "resampled": 0}
        for x, y in zip(a, b, strict=True):
            assert (y.parameters >= low).all()
            assert (y.parameters <= high).all()
            inside = (x.parameters >= low) & (x.parameters <= high)
            np.testing.assert_array_equal(x.parameters[inside], y.parameters[inside])
            assert (y.bounds == "inside") == inside.all()
            kinds[y.bounds] += 1
        assert min(kinds.values()) > 20
        assert {row[0] for row in rows(bound, "drawn")} == {None}


def test_samples_are_clipped_if_the_user_asks_and_both_are_kept(tmp_path):
    with make(tmp_path / "free.db") as free, make(tmp_path / "c.db", low=-1, high=1, outside="clip") as bound:
        for x, y in zip(free.ask_many(50), bound.ask_many(50), strict=True):
            np.testing.assert_array_equal(np.clip(x.parameters, -1, 1), y.parameters)
        for bounds, blob, drawn in rows(bound, "bounds, parameters, drawn"):
            assert (bounds == "clipped") == (drawn is not None)
            if drawn is not None:
                np.testing.assert_array_equal(np.frombuffer(blob), np.clip(np.frombuffer(drawn), -1, 1))


def test_what_was_executed_is_what_is_learned_from(path):
    with make(path, low=-0.5, high=0.5, outside="clip") as study:
        optimizer = study.optimizer
        asked = study.ask_many(6)
        returns = [good_return(episode.parameters) for episode in asked]
        study.tell_many(asked, returns)
        optimizer.tell(np.array([episode.parameters for episode in asked]), returns)
        assert study.optimizer.to_bytes() == optimizer.to_bytes()


def test_tight_bounds_on_many_parameters_are_no_obstacle(path):
    with make(path, klimb.dr_creps(), mean=np.zeros(140), low=-0.3, high=0.3, batch=20) as study:
        advance(study, 45)
        parameters = np.array([np.frombuffer(row[0]) for row in rows(study, "parameters")])
        assert np.abs(parameters).max() <= 0.3
        assert study.status().updates == 2


def test_start_follows_from_bounds(path):
    with make(path, mean=None, std=None, low=[-1, 0, 2], high=[1, 4, 4], names=NAMES) as study:
        np.testing.assert_allclose(study.optimizer.mean, [0, 2, 3])
        np.testing.assert_allclose(study.optimizer.std, [0.5, 1, 0.5])
        assert study.names == tuple(NAMES)


@given(
    st.floats(0, 1, exclude_max=True),
    st.floats(-50, 50),
    st.floats(1e-3, 1e3),
    st.floats(-30, 30),
    st.floats(1e-3, 20),
)
def test_truncated_normal_is_the_quantile_of_scipy(u, center, std, start, width):
    low, high = center + start * std, center + (start + width) * std
    a, b = (low - center) / std, (high - center) / std
    drawn = truncated_normal(u, center, std, low, high)
    assert low <= drawn <= high
    expected = truncnorm.ppf(u, a, b) if a <= 0 else -truncnorm.ppf(u, -b, -a)
    assert (drawn - center) / std == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("low", [-np.inf, -1e9, 5.0, 1e6])
def test_truncated_normal_reaches_far_tails(low):
    drawn = truncated_normal(0.5, 0.0, 1.0, low, np.inf)
    assert low <= drawn < np.inf
    if low >= 5:
        assert drawn - low < 1 / low


@pytest.mark.parametrize("mixed", [None, [1, 3]])
def test_conditional_is_the_formula_of_the_dense_covariance(rng, mixed):
    gaussian = random_gaussian(rng, 5, mixed)
    mean, covariance = dense(gaussian)
    theta = rng.standard_normal(5)
    for j in range(5):
        rest = np.arange(5) != j
        weights = np.linalg.solve(covariance[np.ix_(rest, rest)], covariance[rest, j])
        center, std = conditional(gaussian, theta, j)
        assert center == pytest.approx(mean[j] + weights @ (theta - mean)[rest], abs=1e-9)
        assert std**2 == pytest.approx(covariance[j, j] - weights @ covariance[rest, j], rel=1e-9)


def test_resampled_independent_parameters_follow_the_truncated_normal(rng):
    gaussian = klimb.Gaussian(np.zeros(1), np.ones(1), np.empty(0, dtype=np.int64), np.empty((0, 0)))
    low, high = np.array([-0.5]), np.array([2.0])
    drawn = np.array([redraw(gaussian, rng.standard_normal(1), low, high, rng)[0] for _ in range(4000)])
    expected = truncnorm(-0.5, 2.0)
    assert drawn.mean() == pytest.approx(expected.mean(), abs=0.04)
    assert drawn.std() == pytest.approx(expected.std(), abs=0.04)


# episodes of one's own


def test_an_inserted_episode_counts_like_any_other(path):
    with make(path, names=NAMES, low=-2, high=2) as study:
        number = study.insert([0.5, 1, 7], 3.0, extra={"teacher": "Ada"})
        assert number == 1
        assert rows(study, "origin, bounds, extra, seed") == [
            ("inserted", "outside", '{"teacher": "Ada"}', None)
        ]
        asked = advance(study, 5)
        assert study.status().updates == 1
        assert [episode.id for episode in asked] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ([1.0, 2.0], r"shape \(N, 3\)"),
        ([1.0, 2.0, np.nan], "finite"),
        ("abc", "numbers"),
        ([1e80, 0, 0], "standard deviations from the belief"),
    ],
)
def test_an_episode_that_cannot_be_learned_from_is_not_inserted(study, parameters, match):
    with pytest.raises(ValueError, match=match):
        study.insert(parameters, 1.0)
    assert rows(study) == []


def test_warm_start_from_a_table(path, tmp_path, rng):
    table = tmp_path / "old.csv"
    theta = rng.standard_normal((10, 3))
    with open(table, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hip", "return", "ankle", "knee", "energy", "who"])
        for i, (a, b, c) in enumerate(theta):
            writer.writerow([a, "" if i == 4 else i, c, b, 2 * i, "Ada"])
    with make(path, names=NAMES) as study:
        optimizer = study.optimizer
        assert study.import_csv(table) == list(range(1, 11))
        status = study.status()
        assert (status.updates, status.done, status.failed) == (1, 9, 1)
        keep = np.arange(10) != 4
        optimizer.tell(theta[keep], np.arange(10.0)[keep])
        np.testing.assert_array_equal(study.optimizer.mean, optimizer.mean)
        assert json.loads(rows(study, "episode, extra")[3][1]) == {"energy": 6.0, "who": "Ada"}


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "there is no column 'hip'"),
        ("hip,knee,ankle\n1,2,3\n", "there is no column 'return'"),
        ("hip,knee,ankle,return\n", "no episodes"),
        ("hip,knee,ankle,return\n1,2,x,4\n", "line 2: ankle must be a number, but it is 'x'"),
        ("hip,knee,ankle,return\n1,2,3,4\n1,2,3,many\n", "line 3: return must be a number"),
        ("hip,knee,ankle,return\n1,2,3\n", "line 2 has more or fewer cells"),
        ("hip,knee,ankle,return\n1,2,3,4,5\n", "line 2 has more or fewer cells"),
        ("hip,knee,ankle,return\n1,2,3,inf\n", "infinity"),
        ("hip,knee,ankle,return\n1,2,inf,4\n", "finite"),
        ("hip,knee,ankle,return\n1,2,1e80,4\n", "standard deviations"),
        ("hip,hip,knee,ankle,return\n1,2,3,4,5\n", "same name"),
        ("hip,knee,ankle,return,extra\n1,2,3,4,[1]\n", "JSON object"),
        ('hip,knee,ankle,return\n"1,2,3,4\n', "comma-separated"),
        ("\xff\xfe\x00", "comma-separated"),
    ],
)
def test_a_table_that_cannot_be_read_changes_nothing(path, tmp_path, text, match):
    table = tmp_path / "old.csv"
    table.write_bytes(text.encode("latin-1"))
    with make(path, names=NAMES) as study, pytest.raises(ValueError, match=match):
        study.import_csv(table)
    with klimb.Study(path) as study:
        assert rows(study) == []


# tables out


@pytest.fixture
def varied(path):
    """A study with episodes of every kind."""
    with make(path, names=NAMES, low=-1, high=1, outside="clip", repeats=2, batch=4) as study:
        asked = study.ask_many(11)
        for episode in asked[:9]:
            study.tell(episode, good_return(episode.parameters), extra={"näme": "ü", "x": [1, None]})
        study.fail(asked[9], 'a "quoted", reason\nof two lines')
        study.insert([0.1, 0.2, 0.3], 1e-300)
        yield study


def test_exported_table_has_every_digit_and_comes_back(varied, tmp_path):
    assert varied.export(tmp_path / "all.csv") == 13
    with open(tmp_path / "all.csv", newline="") as file:
        table = list(csv.DictReader(file))
    for line, (number, blob, value) in zip(table, rows(varied, "episode, parameters, return"), strict=True):
        assert int(line["episode"]) == number
        assert [float(line[name]) for name in NAMES] == np.frombuffer(blob).tolist()
        assert (float(line["return"]) if line["return"] else None) == value
    with make(tmp_path / "copy.db", names=NAMES, batch=100) as copy:
        assert len(copy.import_csv(tmp_path / "all.csv")) == 11
        columns = "status, return, reason, extra, parameters"
        kept = [row for row in rows(varied, f"episode, {columns}") if row[1] != "pending"]
        assert [row[1:] for row in rows(copy, f"episode, {columns}")] == [row[1:] for row in kept]


def test_json_lines_say_the_same(varied, tmp_path):
    varied.export(tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["episode"] for line in lines] == list(range(1, 14))
    assert lines[0]["extra"] == {"näme": "ü", "x": [1, None]}
    assert lines[9]["reason"].startswith('a "quoted"')
    for line in lines[:12]:
        assert (line["drawn"] is not None) == (line["bounds"] == "clipped")


def test_parquet_says_the_same(varied, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    varied.export(tmp_path / "all.parquet")
    varied.export(tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()]
    table = parquet.read_table(tmp_path / "all.parquet").to_pylist()
    for row, line in zip(table, lines, strict=True):
        assert {name: row[name] for name in NAMES} == line["parameters"]
        assert row["seed"] == line["seed"]
        assert row["return"] == line["return"]
        assert row["drawn"] == (None if line["drawn"] is None else list(line["drawn"].values()))


def test_without_pyarrow_the_way_out_is_named(study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"pip install 'klimb\[parquet\]'"):
        study.export(tmp_path / "all.parquet")


@pytest.mark.parametrize("name", ["all.xlsx", "all", "arm.db"])
def test_other_formats_are_refused(study, tmp_path, name):
    with pytest.raises(ValueError, match=r"must end in \.csv, \.jsonl or \.parquet"):
        study.export(tmp_path / name)


def test_an_export_that_breaks_off_replaces_nothing(varied, tmp_path):
    target = tmp_path / "all.csv"
    target.write_text("old")
    connection = sqlite3.connect(varied.path)
    with connection:
        connection.execute("UPDATE samples SET parameters = x'00' WHERE id = 9")
    connection.close()
    with pytest.raises(klimb.StudyError, match="damaged"):
        varied.export(target)
    assert target.read_text() == "old"
    assert not list(tmp_path.glob("*.part"))


# status


def test_status_counts_and_names_what_matters(path):
    with make(path, klimb.dr_creps(n_effective=1), names=NAMES, batch=40) as study:
        empty = study.status()
        assert (empty.updates, empty.done, empty.best_return, empty.matters) == (0, 0, None, [])
        advance(study, 85, lambda theta: -10 * (theta[1] - 1) ** 2)
        study.ask()
        status = study.status()
        assert (status.updates, status.done, status.settled, len(status.pending)) == (2, 85, 5, 1)
        assert status.matters[0][0] == "knee"
        assert status.curve["episodes"].tolist() == [40, 80]
        best = max(value for (value,) in rows(study, "return") if value is not None)
        assert status.best_return == best


def test_effectiveness_is_mapped_back_from_local_coordinates(path):
    with make(
        path, klimb.creps_pe(n_effective=1), covariance=[[2, 1.2, 0], [1.2, 2, 0], [0, 0, 1]], std=None
    ) as study:
        belief = study.optimizer.belief
        asked = study.ask_many(6)
        info = study.tell_many(asked, [good_return(episode.parameters) for episode in asked])
        U = np.eye(3)
        U[np.ix_(belief.mixed, belief.mixed)] = belief.rotation
        np.testing.assert_allclose(study.status().effectiveness, U**2 @ info.effectiveness)


def test_a_callback_sees_every_update_of_this_object(path):
    seen = []
    with make(path, callback=seen.append) as study:
        advance(study, 14)
    assert [progress.episodes for progress in seen] == [6, 12]
    assert [progress.optimizer.iteration for progress in seen] == [1, 2]
    assert seen[0].theta.shape == (6, 3)


def test_the_optimizer_is_a_copy(study):
    optimizer = study.optimizer
    optimizer.tell(optimizer.ask(6), np.arange(6.0))
    assert study.optimizer.iteration == 0


# settings


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"mean": None}, "number of parameters is unknown"),
        ({"std": None}, "std is needed"),
        ({"std": -1.0}, "std must lie"),
        ({"mean": None, "names": NAMES}, "mean is needed"),
        ({"names": ["a", "b"]}, "mean has 3 entries, but names has 2"),
        ({"names": ["a", "b", "a"]}, "two parameters are called 'a'"),
        ({"names": ["a", "b", "return"]}, "column of exported tables"),
        ({"names": ["a", "b", " "]}, "without spaces"),
        ({"names": ["a", "b", 3]}, "must be a text"),
        ({"low": 1.0, "high": 1.0}, "low must be below high"),
        ({"low": [0, 1]}, "mean has 3 entries, but low has 2"),
        ({"low": np.nan}, "no NaN"),
        ({"low": 0.5}, "mean must lie within the bounds, but that of p0 is 0"),
        ({"outside": "ignore"}, "'resample', 'clip'"),
        ({"batch": 1}, "batch must be a whole number from 2"),
        ({"batch": 2.5}, "batch"),
        ({"repeats": 0}, "repeats"),
        ({"seed": -1}, "seed"),
        ({"covariance": np.eye(3)}, "exactly one of std and covariance"),
        ({"run": {"x": np.inf}}, "run must be a JSON object"),
    ],
)
def test_wrong_settings_are_named_and_nothing_is_made(path, settings, match):
    with pytest.raises(ValueError, match=match):
        make(path, **settings)
    assert not list(path.parent.iterdir())


def test_only_an_algorithm_is_an_algorithm(path):
    with pytest.raises(ValueError, match="recipe"):
        klimb.Study.create(path, "creps", mean=[0.0], std=1.0)


def test_an_existing_file_is_never_replaced(path):
    path.write_text("my thesis")
    with pytest.raises(ValueError, match="exists already"):
        make(path)
    assert path.read_text() == "my thesis"


def test_a_directory_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="cannot be written: No such file or directory"):
        make(tmp_path / "no" / "arm.db")


def test_batch_is_the_algorithms_unless_given(path):
    with make(path, klimb.creps(), batch=None) as study:
        assert study.settings.batch == 150


def test_a_fresh_seed_is_kept_to_the_last_digit(path):
    with make(path, seed=None) as study:
        seed = study.settings.seed
        assert study.optimizer.seed == seed
    assert seed > 2**64 or seed >= 0


def test_names_of_odd_files_work(tmp_path):
    for name in ("a b.db", "50%.db", "what?.db", "#1.db", "ünï.db", "file:x.db"):
        with make(tmp_path / name) as study:
            advance(study, 1)
        with klimb.Study(tmp_path / name) as study:
            assert study.status().done == 1


# wrong use: a sentence, and the study as it was


def wrong(study, other):
    return {
        "unknown": (lambda: study.tell(7, 1.0), "has no episode 7: the last one is 3"),
        "zero": (lambda: study.tell(0, 1.0), "whole number"),
        "huge": (lambda: study.tell(2**70, 1.0), "whole number"),
        "word": (lambda: study.tell("3", 1.0), "whole number"),
        "told twice": (lambda: study.tell(1, 9.0), "episode 1 was told before, with the return 1.0"),
        "failed before": (
            lambda: study.tell(2, 9.0),
            r"as failed \(fell\); to run it again: klimb study retry",
        ),
        "another's": (lambda: study.tell(other.ask(), 1.0), "belongs to another study"),
        "nan": (lambda: study.tell(3, np.nan), "finite number, but nan came"),
        "infinite": (lambda: study.tell(3, np.inf), "finite number"),
        "text": (lambda: study.tell(3, "good"), "finite number, but 'good' came"),
        "truth": (lambda: study.tell(3, True), "finite number"),
        "extra": (lambda: study.tell(3, 1.0, extra={"x": np.nan}), "extra must be a JSON object"),
        "extra list": (lambda: study.tell(3, 1.0, extra=[1]), "extra must be a JSON object"),
        "surrogate": (lambda: study.fail(3, "\ud800"), "must be a text"),
        "one of many": (lambda: study.tell_many([3, 1], [1.0, 1.0]), "episode 1 was told before"),
        "twice in one": (lambda: study.tell_many([3, 3], [1.0, 1.0]), "episode 3 comes twice"),
        "too few returns": (lambda: study.tell_many([3], [1.0, 2.0]), "1 numbers, one per episode"),
        "infinite return": (lambda: study.tell_many([3], [np.inf]), "infinity"),
        "count": (lambda: study.ask_many(0), "count"),
        "retry": (lambda: study.retry(3), "episode 3 is pending"),
    }


@pytest.mark.parametrize("case", wrong(None, None))
def test_wrong_use_is_explained_and_changes_nothing(tmp_path, case):
    with make(tmp_path / "arm.db") as study, make(tmp_path / "other.db") as other:
        study.ask_many(3)
        study.tell(1, 1.0)
        study.fail(2, "fell")
        before = rows(study)
        call, match = wrong(study, other)[case]
        with pytest.raises(ValueError, match=match):
            call()
        assert rows(study) == before
        study.tell(3, 2.0)


def test_a_study_that_is_closed_or_came_through_a_fork_is_not_used(path):
    study = make(path)
    study._file._process -= 1  # as a forked process sees it
    with pytest.raises(ValueError, match="open it in each process"):
        study.ask()
    study.close()
    study._file._process += 1
    study.ask()
    study.close()
    with pytest.raises(ValueError, match="closed"):
        study.ask()


def test_a_measure_of_ones_own_is_handed_back(path):
    def third(local, returns, rng):
        return np.array([0.0, 0.0, 1.0])

    with make(path, klimb.dr_creps(n_effective=1, effectiveness=third)) as study:
        info = study.tell_many(study.ask_many(6), np.arange(6.0))
        assert info.selected.tolist() == [2]
    with klimb.Study(path) as study:
        assert study.status().updates == 1
        asked = study.ask_many(6)
        with pytest.raises(klimb.StudyError, match=r"is stored, but the update failed.*'.*third'"):
            study.tell_many(asked, np.arange(6.0))
    with klimb.Study(path, effectiveness=third) as study:
        assert study.status().done == 12
        study.tell(study.ask(), 3.0)
        assert study.status().updates == 2


def test_a_return_is_kept_even_if_the_update_fails(path):
    def breaks(local, returns, rng):
        raise ZeroDivisionError("my mistake")

    with make(path, klimb.dr_creps(effectiveness=breaks)) as study:
        asked = study.ask_many(6)
        for episode in asked[:5]:
            study.tell(episode, good_return(episode.parameters))
        with pytest.raises(klimb.StudyError, match="my mistake"):
            study.tell(asked[5], 1.0)
        status = study.status()
        assert (status.done, status.updates, status.settled) == (6, 0, 6)


@pytest.mark.parametrize("size", [1e300, 1.7e308])
def test_huge_returns_neither_break_nor_stop_a_study(path, size):
    with make(path, repeats=2) as study:
        asked = study.ask_many(12)
        with suppress(klimb.StudyError):
            study.tell_many(asked, np.where(np.arange(12) % 4 < 2, size, -size / 3))
        assert study.status().done == 12


# files


def test_the_file_is_what_the_manual_says(study):
    connection = sqlite3.connect(study.path)
    pragma = {
        name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "user_version")
    }
    assert pragma == {"journal_mode": "wal", "user_version": 2}
    assert connection.execute("PRAGMA application_id").fetchone()[0] == 0x6B6C6D62
    connection.close()
    for name, value in (("foreign_keys", 1), ("synchronous", 2), ("wal_autocheckpoint", 0)):
        assert study._file.all(f"PRAGMA {name}") == [(value,)]


def test_closing_leaves_one_file(path):
    with make(path) as study:
        advance(study, 3)
        assert path.with_name("arm.db-wal").exists()
    assert [file.name for file in path.parent.iterdir()] == ["arm.db"]


def test_an_older_study_is_brought_up_to_date_and_an_older_klimb_refuses_it(path, monkeypatch):
    with make(path) as study:
        advance(study, 7)
        before = rows(study, "episode, status, return, parameters")
    older = list(study_file.MIGRATIONS)
    second = "ALTER TABLE trials ADD COLUMN robot TEXT; CREATE TABLE robots (name TEXT PRIMARY KEY);"
    monkeypatch.setattr(study_file, "MIGRATIONS", [*older, second, "CREATE TABLE third (x)"])
    with klimb.Study(path) as study:
        assert rows(study, "episode, status, return, parameters") == before
        assert {row[0] for row in rows(study, "robot", "trials")} == {None}
        advance(study, 6)
        assert study.status().updates == 2
    with klimb.Study(path) as study:
        assert study._file.all("PRAGMA user_version") == [(4,)]
    monkeypatch.setattr(study_file, "MIGRATIONS", older)
    content = path.read_bytes()
    with pytest.raises(ValueError, match="made by a newer klimb"):
        klimb.Study(path)
    assert path.read_bytes() == content


def test_a_migration_that_fails_changes_nothing(path, monkeypatch):
    make(path).close()
    content = path.read_bytes()
    wrong = "CREATE TABLE fine (x); CREATE TABLE episodes (x);"
    monkeypatch.setattr(study_file, "MIGRATIONS", [*study_file.MIGRATIONS, wrong])
    with pytest.raises(klimb.StudyError):
        klimb.Study(path)
    assert path.read_bytes() == content


def test_what_is_no_study_is_left_alone(tmp_path):
    (tmp_path / "text").write_text("not a study, but a longer text " * 100)
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE mine (x)")
    connection.close()
    for name in ("text", "empty", "directory", "other.db"):
        content = (tmp_path / name).read_bytes() if name != "directory" else None
        with pytest.raises(ValueError, match="is not a study"):
            klimb.Study(tmp_path / name)
        if content is not None:
            assert (tmp_path / name).read_bytes() == content
    with pytest.raises(FileNotFoundError, match="klimb study create"):
        klimb.Study(tmp_path / "nothing.db")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_damaged_state_is_noticed_before_anything_is_written(path):
    with make(path) as study:
        advance(study, 2)
    connection = sqlite3.connect(path)
    (blob,) = connection.execute("SELECT optimizer FROM state").fetchone()
    with connection:
        connection.execute("UPDATE state SET optimizer = ?", (blob[:300] + b"?" + blob[301:],))
    connection.close()
    with klimb.Study(path) as study:
        before = rows(study)
        with pytest.raises(klimb.StudyError, match=r"damaged.*sqlite3 .* \.recover"):
            study.ask()
        assert rows(study) == before


def test_a_writer_that_does_not_let_go_is_waited_for_and_named(path, monkeypatch):
    monkeypatch.setattr(study_file, "BUSY_SECONDS", 0.2)
    with make(path) as study:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(klimb.StudyError, match="busy by another process"):
            study.ask()
        assert study.status().pending == []
        other.execute("ROLLBACK")
        other.close()
        assert study.ask().id == 1


def test_a_link_and_a_change_of_directory_do_not_confuse_it(path, tmp_path, monkeypatch):
    make(path, klimb.es(), mean=np.zeros(50_000)).close()
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "link.db").symlink_to(path)
    monkeypatch.chdir(tmp_path / "links")
    with klimb.Study("link.db") as study:
        monkeypatch.chdir("/")
        for _ in range(30):
            study.ask()
        assert path.with_name("arm.db-wal").stat().st_size < 1.5 * study_file.LARGEST_LOG
    assert len(list(tmp_path.iterdir())) == 2


def test_a_copy_of_the_closed_file_is_the_study(path, tmp_path):
    with make(path) as study:
        advance(study, 8)
    shutil.copy(path, tmp_path / "copy.db")
    with klimb.Study(path) as a, klimb.Study(tmp_path / "copy.db") as b:
        np.testing.assert_array_equal(a.ask().parameters, b.ask().parameters)


# TensorBoard


def test_tensorboard_event_files_hold_the_curve(path, tmp_path):
    record = pytest.importorskip("tensorboardX.record_writer")
    from tensorboardX.proto.event_pb2 import Event

    with klimb.TensorBoard(tmp_path / "board") as board, make(path, klimb.dr_creps()) as study:
        result = study.run(good_return, episodes=24, callback=board)
    (file,) = (tmp_path / "board").iterdir()
    data, seen, place = file.read_bytes(), {}, 0
    while place < len(data):
        length = int.from_bytes(data[place : place + 8], "little")
        event = Event.FromString(data[place + 12 : place + 12 + length])
        for value in event.summary.value:
            seen.setdefault(value.tag, []).append((event.step, value.simple_value))
        place += 16 + length
    assert record is not None
    assert [step for step, _ in seen["return/mean"]] == [6, 12, 18, 24]
    np.testing.assert_allclose([v for _, v in seen["return/mean"]], result.curve["mean_return"], rtol=1e-6)
    np.testing.assert_allclose([v for _, v in seen["update/kl"]], result.curve["kl"], rtol=1e-6)
    assert "effectiveness" in seen


def test_without_tensorboardx_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ImportError, match=r"pip install 'klimb\[tensorboard\]'"):
        klimb.TensorBoard(tmp_path)
