"""Studies of baselines: the same learning as without a file, whatever happens in between."""

import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
from test_study import Noisy, good_return, rows
from test_study_cli import answer, done, refused, run
from test_study_faults import contents, finished, script

import klimb
from klimb.baselines import Conversation, first_policy, train
from klimb.study import file as study_file

TELLING = ["cma-es", "sep-cma", "vkd-cma", "cr-fm-nes", "nelder-mead", "l-bfgs", "random-search", "ars"]
ACTING = {"ppo": {}, "trpo": {}, "reinforce": {}, "ars": {"version": "v2-t"}}
START = {"mean": np.zeros(3), "std": 1.0, "seed": 3}


def make(path, name="cma-es", settings=(), **more):
    return klimb.Study.create(path, klimb.make_algorithm(name, **dict(settings)), **START | more)


def steep_return(theta):
    return -float(np.square(np.square(theta - 1.0)).sum())


def converse(name="cma-es", batch=6, **settings):
    return klimb.make_algorithm(name, **settings).start(**START, batch=batch)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arm.db"


@pytest.fixture
def lqr():
    return klimb.make_task("lqr", n_states=3, horizon=10)


def same_curve(a, b):
    np.testing.assert_array_equal(np.array(a.tolist()), np.array(b.tolist()))  # NaN is NaN


def same(result, expected):
    np.testing.assert_array_equal(result.mean, expected.mean)
    same_curve(result.curve, expected.curve)
    np.testing.assert_array_equal(result.best_parameters, expected.best_parameters)
    assert result.best_return == expected.best_return
    assert (result.episodes, result.n_failed) == (expected.episodes, expected.n_failed)
    assert result.optimizer.iteration == expected.optimizer.iteration


# the same learning as without a file


@pytest.mark.parametrize("failing", [0.0, 0.3])
@pytest.mark.parametrize("name", TELLING)
def test_run_is_what_maximize_does_and_goes_on_where_it_stopped(tmp_path, name, failing):
    task, algorithm = Noisy(failing), klimb.make_algorithm(name)
    expected = klimb.maximize(task, algorithm, episodes=65, batch=6, **START)
    with make(tmp_path / "one.db", name, batch=6) as one:
        same(one.run(task, episodes=65), expected)
    with make(tmp_path / "two.db", name, batch=6) as two:
        two.run(task, episodes=20)
        lost = two.ask_many(5)  # a run that was killed while it simulated
        assert len(lost) == len(two.status().pending)
    with klimb.Study(tmp_path / "two.db") as two:
        same(two.run(task, episodes=65), expected)
        assert two.optimizer.to_bytes() == expected.optimizer.to_bytes()
    assert contents(tmp_path / "one.db") == contents(tmp_path / "two.db")


@pytest.mark.parametrize("name", TELLING)
def test_one_by_one_in_any_order_is_what_the_conversation_does(path, name):
    expected = converse(name)
    rng = np.random.default_rng(0)
    with make(path, name, batch=6) as study:
        for _ in range(4):
            wanted = expected.ask(99)
            expected.tell(wanted, [steep_return(row) for row in wanted])
            asked = [study.ask() for _ in wanted]
            np.testing.assert_array_equal([episode.parameters for episode in asked], wanted)
            made = [study.tell(asked[i], steep_return(wanted[i])) for i in rng.permutation(len(asked))]
            assert made[:-1] == [None] * (len(asked) - 1)
            assert (made[-1].n_used, made[-1].n_failed) == (len(asked), 0)
        np.testing.assert_array_equal(study.optimizer.mean, expected.mean)
        assert study.status().updates == expected.iteration == 4
        assert rows(study, "kl, entropy, std", "updates") == [(None, None, None)] * 4
        assert {row[0] for row in rows(study, '"update"')} == {1, 2, 3, 4}


def test_a_search_that_ends_says_so(path):
    settings = {"tolerance": 0.5}
    expected = klimb.maximize(
        good_return, klimb.make_algorithm("nelder-mead", **settings), episodes=900, batch=50, **START
    )
    assert expected.optimizer.ended
    assert expected.episodes % 50
    with make(path, "nelder-mead", settings, batch=50) as study:
        same(study.run(good_return, episodes=900), expected)
        same(study.run(good_return, episodes=900), expected)
        assert study.ask_many(3) == []
        with pytest.raises(klimb.StudyError, match="nelder-mead has come to its end"):
            study.ask()
        status = study.status()
        assert status.ended
        assert status.settled == 0
    assert "has come to its end" in refused(1, "ask", path)
    assert "has come to its end" in done("status", path)
    assert answer("status", path)["ended"] is True


def test_a_callback_sees_batches_of_a_run_and_ends_it(path):
    seen, every = [], []

    def stop(progress):
        seen.append((progress.episodes, len(progress.returns), progress.best_return))
        return len(seen) == 2

    with make(path, "nelder-mead", batch=6, callback=every.append) as study:
        result = study.run(good_return, episodes=600, callback=stop)
    assert [row[:2] for row in seen] == [(6, 6), (12, 6)]
    assert seen[-1][2] == result.best_return
    assert [progress.episodes for progress in every] == list(range(1, 13))


# several at a time


def test_what_must_be_known_first_is_named(path):
    with make(path, batch=6) as study:
        assert len(study.ask_many(4)) == 4
        assert [episode.id for episode in study.ask_many(4)] == [5, 6]
        assert study.ask_many(4) == []
        with pytest.raises(klimb.StudyError, match=r"episode 1, 2, 3, 4, 5, 6 has not come back.*reissue"):
            study.ask()
        for number in range(1, 6):
            study.tell(number, float(number))
        with pytest.raises(klimb.StudyError, match="episode 6 has not come back"):
            study.ask()
        assert study.ask(reissue_after=0).id == 6
        assert (study.status().settled, study.status().needed) == (5, 6)
        assert study.fail(6, "fell").n_failed == 1
        assert study.ask().id == 7
    assert "episode 7 has not come back" not in done("ask", path)


ROBOT = """
import sys, time
import numpy as np
import klimb

with klimb.Study(sys.argv[1]) as study:
    while study.status().done < int(sys.argv[2]):
        for episode in study.ask_many(1):
            study.tell(episode, -float(np.square(np.asarray(episode.parameters) - 1.0).sum()))
            break
        else:
            time.sleep(0.001)
"""


@pytest.mark.parametrize("name", ["cma-es", "nelder-mead"])
def test_four_robots_learn_what_one_does(tmp_path, name):
    with make(tmp_path / "one.db", name, batch=10) as one:
        expected = one.run(good_return, episodes=80)
        assert expected.episodes == 80
    make(tmp_path / "four.db", name, batch=10).close()
    for robot in [script(ROBOT, tmp_path / "four.db", 80) for _ in range(4)]:
        finished(robot)
    with klimb.Study(tmp_path / "four.db") as four:
        assert four.status().done >= 80
        same_curve(four.status().curve[:8], expected.curve)
    first = [row[:11] for row in contents(tmp_path / "four.db")["episodes"][:80]]
    assert first == [row[:11] for row in contents(tmp_path / "one.db")["episodes"]]


# what a baseline cannot use


def test_episodes_that_were_not_asked_for_are_refused_and_change_nothing(path, tmp_path):
    (tmp_path / "old.csv").write_text("p0,p1,p2,return\n1,2,3,4\n")
    with make(path, batch=4) as study:
        study.tell(study.ask(), 1.0)
        before = contents(path)
        with pytest.raises(ValueError, match="cma-es learns only from what it asked for"):
            study.insert([0.0, 0.0, 0.0], 1.0)
        with pytest.raises(ValueError, match="cma-es learns only from what it asked for"):
            study.import_csv(tmp_path / "old.csv")
        assert contents(path) == before


def test_a_failed_episode_is_retried_until_its_update(path):
    with make(path, batch=4) as study:
        asked = study.ask_many(4)
        study.fail(asked[0], "fell")
        assert study.retry(1) == 5
        for episode in asked[1:]:
            study.tell(episode, good_return(episode.parameters))
        assert study.status().updates == 0, "it waits for the retry"
        again = study.ask()
        assert (again.id, again.parameters.tolist()) == (5, asked[0].parameters.tolist())
        assert study.tell(again, good_return(again.parameters)).n_used == 4
        study.fail(study.ask_many(4), "fell")
        before = contents(path)
        with pytest.raises(ValueError, match="since its last update"):
            study.retry(6)
        assert contents(path) == before
    expected = converse(batch=4)
    expected.tell(theta := expected.ask(4), [good_return(row) for row in theta])
    expected.tell(expected.ask(4), [np.nan] * 4)
    with klimb.Study(path) as study:
        np.testing.assert_array_equal(study.ask().parameters, expected.ask(1)[0])
        assert [row["episodes"] for row in study.status().curve] == [5]


def test_clipped_parameters_are_executed_and_told_for_the_drawn_ones(path):
    expected = converse()
    with make(path, batch=6, low=-1.0, high=1.0, outside="clip") as study:
        for _ in range(3):
            drawn = expected.ask(6)
            executed = np.clip(drawn, -1.0, 1.0)
            expected.tell(drawn, [good_return(row) for row in executed])
            for row in executed:
                episode = study.ask()
                np.testing.assert_array_equal(episode.parameters, row)
                study.tell(episode, good_return(row))
        assert {row[0] for row in rows(study, "bounds")} == {"inside", "clipped"}
    with klimb.Study(path) as study:  # and so it is gone through again
        np.testing.assert_array_equal(study.optimizer.wanted, expected.wanted)


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("cma-es", {"low": -1.0, "high": 1.0}, r"--outside clip"),
        ("cma-es", {"batch": 3}, "at least 4"),
        ("cma-es", {"std": None, "covariance": np.eye(3)}, "starts from std"),
        ("ars", {"batch": 7}, "even"),
        ("cr-fm-nes", {"batch": 7}, "even"),
        ("nelder-mead", {"repeats": 0}, "repeats"),
        ("reinforce", {}, "no std, bounds and repeats"),
        ("reinforce", {"std": None, "seed": None}, "first_policy"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_made(path, name, settings, match):
    with pytest.raises(ValueError, match=match):
        make(path, name, **settings)
    assert not list(path.parent.iterdir())


def test_the_batch_is_the_usual_one_unless_given(tmp_path):
    for name, batch in {"cma-es": 7, "cr-fm-nes": 8, "nelder-mead": 50, "ars": 32}.items():
        with make(tmp_path / f"{name}.db", name) as study:
            assert study.settings.batch == batch
    with make(tmp_path / "one.db", "nelder-mead", batch=1) as study:
        assert len(study.run(good_return, episodes=5).curve) == 5


def test_repeats_are_averaged_and_failed_ones_left_out(path):
    returns = np.arange(12.0).reshape(4, 3) ** 2
    returns[1, 0] = returns[2] = np.nan
    expected = converse(batch=4)
    expected.tell(expected.ask(4), [returns[0].mean(), returns[1, 1:].mean(), np.nan, returns[3].mean()])
    with make(path, batch=4, repeats=3) as study:
        asked = study.ask_many(20)
        assert len(asked) == 12
        info = study.tell_many(asked, returns.ravel())
        assert (info.n_used, info.n_failed) == (3, 1)
        np.testing.assert_array_equal(study.optimizer.wanted, expected.wanted)
        assert study.status().curve["episodes"].tolist() == [12]


# one conversation, gone through once


@pytest.fixture
def counted(monkeypatch):
    answers = []
    original = Conversation.answer

    def answer(self, returns):
        answers.append(len(returns))
        original(self, returns)

    monkeypatch.setattr(Conversation, "answer", answer)
    return answers


def test_a_study_is_gone_through_once_when_it_is_opened(path, counted):
    with make(path, "random-search", batch=2) as study:
        for _ in range(60):
            study.tell(study.ask(), 1.0)
        assert len(counted) == 30
    with klimb.Study(path) as a, klimb.Study(path) as b:
        for _ in range(20):
            a.tell(a.ask(), 1.0)
            b.tell(b.ask(), 1.0)
            a.status()
    assert len(counted) == 30 + 2 * (30 + 20), "each object goes through every update once"


def test_the_conversation_given_away_does_not_change_the_study(path):
    with make(path, batch=4) as study:
        study.tell_many(study.ask_many(4), np.arange(4.0))
        given = study.optimizer
        wanted = given.wanted
        given.tell(given.ask(4), np.arange(4.0))
        np.testing.assert_array_equal([one.parameters for one in study.ask_many(4)], wanted)


def test_an_update_that_is_not_stored_did_not_happen(path):
    with make(path, batch=4) as study:
        asked = study.ask_many(4)
        study.tell_many(asked[:3], [1.0, 2.0, 3.0])
        study._file.all(
            "CREATE TEMP TRIGGER broken BEFORE UPDATE ON state BEGIN SELECT RAISE(FAIL, 'x'); END"
        )
        with pytest.raises(klimb.StudyError):
            study.tell(asked[3], 99.0)
        study._file.all("DROP TRIGGER broken")
        with klimb.Study(path) as other:
            other.tell(asked[3], 0.0)
        assert study.status().updates == 1
        expected = converse(batch=4)
        expected.tell(expected.ask(4), [1.0, 2.0, 3.0, 0.0])
        np.testing.assert_array_equal(study.optimizer.wanted, expected.wanted)


def test_a_study_that_cannot_be_gone_through_again_says_why(path):
    with make(path, batch=4) as study:
        study.tell_many(study.ask_many(8), np.arange(4.0))
        study.ask()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE samples SET parameters = ? WHERE id = 2", (np.ones(3).tobytes(),))
    connection.close()
    with klimb.Study(path) as study, pytest.raises(klimb.StudyError, match=r"update 1 .*another version"):
        study.ask()


def test_without_the_library_the_way_out_is_named(path, monkeypatch):
    make(path, batch=4).close()
    monkeypatch.setattr("klimb.algorithms.find_spec", lambda name: None)
    with klimb.Study(path) as study, pytest.raises(ImportError, match=r"pip install 'klimb\[peers\]'"):
        study.ask()


# studies made before


def test_a_study_of_the_first_version_goes_on(path, tmp_path):
    algorithm = klimb.creps(epsilon=0.5, kappa=1.0)
    with klimb.Study.create(path, algorithm, **START, batch=6) as study:
        for _ in range(15):
            study.tell(study.ask(), good_return(study.ask(reissue_after=0).parameters))
    old = tmp_path / "old.db"
    connection = sqlite3.connect(old)
    connection.execute("ATTACH ? AS new", (str(path),))
    connection.executescript(study_file.FIRST_VERSION)
    for table in ("study", "state", "updates", "samples", "trials"):
        columns = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
        connection.execute(f"INSERT INTO main.{table} SELECT {columns} FROM new.{table}")
    connection.execute(f"PRAGMA main.application_id = {study_file.APPLICATION_ID}")
    connection.execute("PRAGMA main.user_version = 1")
    connection.commit()
    connection.close()
    with klimb.Study(old) as a, klimb.Study(path) as b:
        assert (a.settings.learner, a.settings.uid) == ("optimizer", b.settings.uid)
        assert a._file.all("PRAGMA foreign_keys") == [(1,)]
        for study in (a, b):
            for _ in range(10):
                study.tell(study.ask(), 1.0)
        assert a._file.all("SELECT sql FROM sqlite_master") == b._file.all("SELECT sql FROM sqlite_master")
    assert contents(old) == contents(path)


# learners that act step by step


def acting(path, lqr, name, batch=6, **more):
    algorithm = klimb.make_algorithm(name, **ACTING[name])
    start = first_policy(lqr, algorithm, batch=batch, seed=3)
    return klimb.Study.create(path, algorithm, mean=start, batch=batch, seed=3, **more)


@pytest.mark.parametrize("name", ACTING)
def test_every_episode_of_a_learner_that_acts_is_kept(path, lqr, name):
    seen = []
    algorithm = klimb.make_algorithm(name, **ACTING[name])
    expected = train(lqr, algorithm, episodes=24, batch=6, seed=3, callback=seen.append)
    with acting(path, lqr, name) as study:
        study.run(lqr, episodes=12)
    with klimb.Study(path) as study:
        result = study.run(lqr, episodes=24)
        np.testing.assert_array_equal(result.mean, expected.mean)
        same_curve(result.curve, expected.curve)
        status = study.status()
        assert (status.updates, status.done, status.failed, status.pending) == (4, 24, 0, [])
        np.testing.assert_array_equal(status.mean, expected.mean)
        same_curve(status.curve, expected.curve)
        stored = rows(study, "episode, iteration, repeat, return, parameters, seed")
        assert [row[3] for row in stored] == np.concatenate([one.returns for one in seen]).tolist()
        assert stored[0][4] == first_policy(lqr, algorithm, batch=6, seed=3).tobytes()
        assert len({row[5] for row in stored}) == 24
        study.run(lqr, episodes=1)
        assert study.status().done == 24


def test_a_learner_that_acts_is_run_by_nobody_else(path, lqr):
    with acting(path, lqr, "reinforce") as study:
        for attempt in (study.ask, lambda: study.insert(np.zeros(study.settings.n_parameters), 1.0)):
            with pytest.raises(ValueError, match=r"reinforce acts step by step.*klimb study resume"):
                attempt()
        with pytest.raises(ValueError, match="has no episode 1"):
            study.tell(1, 1.0)
        with pytest.raises(ValueError, match="acts step by step"):
            study.optimizer  # noqa: B018
        with pytest.raises(ValueError, match="an update takes 6 episodes"):
            study.run(lqr, episodes=4)
        assert study.status().mean.shape == (study.settings.n_parameters,)
    assert rows(study) == []


def test_another_run_is_noticed_and_nothing_is_changed(path, lqr):
    with acting(path, lqr, "reinforce") as study:
        study.run(lqr, episodes=12)
        before = contents(path)
        with pytest.raises(klimb.StudyError, match="update 1 differs"):
            study.run(klimb.make_task("lqr", n_states=3, horizon=11), episodes=24)
        with pytest.raises(ValueError, match="is the task another one"):
            study.run(klimb.make_task("lqr", n_states=4, horizon=10), episodes=24)
        assert contents(path) == before


def test_success_is_kept_beside_the_return(path):
    task = klimb.make_task("ship-steering")
    with acting(path, task, "reinforce") as study:
        study.run(task, episodes=6)
        assert {row[0] for row in rows(study, "extra")} <= {'{"success": true}', '{"success": false}'}


# the command line


@pytest.mark.parametrize("name", ["vkd-cma", "cr-fm-nes", "l-bfgs", "nelder-mead", "reinforce"])
def test_a_run_with_a_study_is_the_same_run_and_resumes_to_the_same(tmp_path, name):
    words = ("lqr", "--option", "n_states=3", "-a", name, "--batch", 10, "--quiet")
    plain = run(*words, "--episodes", 60)
    assert run(*words, "--episodes", 60, "--study", tmp_path / "whole.db") == plain
    run(*words, "--episodes", 25, "--study", tmp_path / "parts.db")
    more = () if name == "reinforce" else ("--workers", 2)
    resumed = answer("resume", tmp_path / "parts.db", "--episodes", 60, "--quiet", *more)
    assert {key: value for key, value in resumed.items() if key != "seconds"} == plain
    assert contents(tmp_path / "whole.db")["episodes"] == contents(tmp_path / "parts.db")["episodes"]
    status = answer("status", tmp_path / "whole.db")
    assert status["std"] is None
    assert status["curve"][0]["kl"] is status["curve"][0]["entropy"] is None


def test_learning_again_is_said(tmp_path):
    words = ("lqr", "--option", "n_states=3", "-a", "reinforce", "--batch", 10, "--study", tmp_path / "a.db")
    run(*words, "--episodes", 20, "--quiet")
    again = subprocess.run(
        [sys.executable, "-m", "klimb", "run", *map(str, words), "--episodes", "20"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "learns its 20 episodes" in again.stderr


def test_the_life_of_a_study_of_a_baseline(tmp_path):
    file = tmp_path / "arm.db"
    done("create", file, "--parameters", 2, "--std", 1, "-a", "cma-es", "--batch", 4)
    for number in range(1, 5):
        asked = answer("ask", file)
        assert asked["episode"] == number
        told = answer("tell", file, number, "--return", -number)
    assert told["update"]["number"] == 1
    assert told["update"]["kl"] is None
    assert "update 2 from 4 samples" in [
        done("tell", file, answer("ask", file)["episode"], "--return", 1) for _ in range(4)
    ][-1].replace("\n", "")
    done("export", file, tmp_path / "all.jsonl")
    exported = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [row["update"] for row in exported] == [1] * 4 + [2] * 4
    assert "learns only from what it asked for" in refused(
        2, "tell", file, "--parameters", "1,2", "--return", 1
    )


def test_a_learner_that_acts_has_no_study_to_create(tmp_path):
    words = ("--parameters", 2, "--std", 1, "-a", "reinforce")
    assert "klimb run TASK" in refused(2, "create", tmp_path / "arm.db", *words)
    assert not list(tmp_path.iterdir())
