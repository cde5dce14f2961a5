"""The command line of studies, from the outside."""

import json
import re
import shlex
import sqlite3
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import klimb
from klimb import cli, study_cli

THREE = ["--names", "hip,knee,ankle", "--std", "1.0", "--batch", "4"]


def invoke(*words):
    return CliRunner().invoke(cli.app, ["study", *map(str, words)])


def done(*words):
    result = invoke(*words)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def answer(*words):
    return json.loads(done(*words, "--json"), parse_constant=pytest.fail)


def refused(code, *words):
    """Run a command that must fail; its message."""
    result = invoke(*words)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert not result.stdout
    return " ".join(result.stderr.split())


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "arm.db"
    done("create", path, *THREE)
    return path


# the commands of the manual


def test_the_life_of_a_study(tmp_path):
    path = tmp_path / "arm.db"
    printed = done(
        "create", path, "--parameters", 140, "--algorithm", "dr-creps", "--std", "1.0", "--batch", 5
    )
    assert "140 parameters, dr-creps, an update after every 5 samples" in printed
    for number in range(1, 12):
        asked = answer("ask", path)
        assert asked["episode"] == number
        assert len(asked["parameters"]) == len(asked["names"]) == 140
        ending = ["--failed", "motor fault"] if number == 3 else ["--return", -number]
        told = answer("tell", path, number, *ending)
        assert (told["update"] is not None) == (number % 5 == 0)
    answer("ask", path)
    status = answer("status", path)
    assert (status["updates"], status["done"], status["failed"]) == (2, 10, 1)
    assert [one["episode"] for one in status["pending"]] == [12]
    assert status["failures"] == [{"episode": 3, "reason": "motor fault"}]
    shown = done("status", path)
    for words in ("Mean return by update", "Which parameters matter", "Pending", "motor fault", "episode 12"):
        assert words in shown
    for ending in ("csv", "jsonl", "parquet"):
        assert "12 episodes" in done("export", path, tmp_path / f"episodes.{ending}")
    assert len((tmp_path / "episodes.csv").read_text().splitlines()) == 13


def test_create_takes_names_bounds_and_scales_from_words_and_files(tmp_path):
    (tmp_path / "std.txt").write_text("0.1\n0.2\n\n0.3\n")
    done(
        *("create", tmp_path / "arm.db", "--names", "a,b,c", "--std", f"@{tmp_path / 'std.txt'}"),
        *("--low", "-1,-2,-inf", "--high", "1", "--outside", "clip", "--repeats", 3, "--seed", 7),
        *("--algorithm", "creps", "--set", "epsilon=0.5"),
    )
    with klimb.Study(tmp_path / "arm.db") as study:
        np.testing.assert_allclose(study.optimizer.std, [0.1, 0.2, 0.3])
        np.testing.assert_array_equal(study.settings.low, [-1, -2, -np.inf])
        np.testing.assert_array_equal(study.settings.high, [1, 1, 1])
        assert (study.settings.outside, study.settings.repeats, study.settings.seed) == ("clip", 3, 7)
        assert study.optimizer.algorithm.update.epsilon == 0.5
        assert study.settings.batch == 150


def test_create_needs_only_names_and_bounds(tmp_path):
    done("create", tmp_path / "arm.db", "--names", "q1,q2", "--low", "0,-1", "--high", "4,1")
    with klimb.Study(tmp_path / "arm.db") as study:
        np.testing.assert_allclose(study.optimizer.mean, [2, 0])
        np.testing.assert_allclose(study.optimizer.std, [1, 0.5])


def test_ask_speaks_to_people_as_well(file):
    printed = done("ask", file).splitlines()
    assert printed[0].startswith("episode 1, seed ")
    assert [line.split(" = ")[0] for line in printed[1:]] == ["hip", "knee", "ankle"]
    again = answer("ask", file, "--reissue-after", "0")
    assert [float(line.split(" = ")[1]) for line in printed[1:]] == again["parameters"]


def test_ask_is_what_python_asks(file, tmp_path):
    asked = [answer("ask", file) for _ in range(3)]
    optimizer = klimb.Optimizer(mean=np.zeros(3), std=1.0, seed=0)
    assert [one["parameters"] for one in asked] == optimizer.ask(3).tolist()
    with klimb.Study(file) as study:
        assert asked[0]["study"] == study.settings.uid


def test_a_human_inserts_an_episode(file, tmp_path):
    told = answer("tell", file, "--parameters", "-0.1,0.4,1e-3", "--return", 5, "--extra", '{"who": "Ada"}')
    assert told == {"episode": 1, "update": None}
    (tmp_path / "demo.txt").write_text("1, 2, 3\n")
    done("tell", file, "--parameters", f"@{tmp_path / 'demo.txt'}", "--return", 6)
    done("export", file, tmp_path / "all.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [list(line["parameters"].values()) for line in lines] == [[-0.1, 0.4, 1e-3], [1, 2, 3]]
    assert [line["extra"] for line in lines] == [{"who": "Ada"}, None]


def test_lost_failed_and_retried(file):
    for _ in range(3):
        done("ask", file)
    assert answer("ask", file, "--reissue-after", "10m")["episode"] == 4
    assert answer("fail", file, "--older-than", "1h")["failed"] == []
    assert answer("fail", file, 1, 2, "--reason", "robot 2 broke")["failed"] == [1, 2]
    assert answer("fail", file, "--older-than", "0")["failed"] == [3, 4]
    assert "run again as 5" in done("retry", file, 2)
    assert answer("ask", file)["episode"] == 5
    assert answer("retry", file, 1) == {"episode": 6}
    reasons = {one["episode"]: one["reason"] for one in answer("status", file)["failures"]}
    assert reasons == {n: "robot 2 broke" if n < 3 else "declared failed" for n in (1, 2, 3, 4)}


def test_warm_start(file, tmp_path):
    (tmp_path / "old.csv").write_text("hip,knee,ankle,return\n" + "".join(f"{i},0,1,{i}\n" for i in range(6)))
    told = answer("import", file, tmp_path / "old.csv")
    assert told["episodes"] == [1, 2, 3, 4, 5, 6]
    assert told["update"]["n_used"] == 6


def test_repeats_are_handed_out_in_turn(tmp_path):
    done("create", tmp_path / "arm.db", *THREE, "--repeats", 3, "--algorithm", "dr-creps")
    asked = [answer("ask", tmp_path / "arm.db") for _ in range(4)]
    assert [one["repeat"] for one in asked] == [0, 1, 2, 0]
    assert asked[0]["parameters"] == asked[2]["parameters"] != asked[3]["parameters"]


# a simulated run


RUN = (
    *("sphere", "--algorithm", "dr-creps", "--option", "n_parameters=6", "--batch", 10, "--seed", 4),
    *("--set", "epsilon=1.5", "--quiet"),
)


def run(*words):
    result = CliRunner().invoke(cli.app, ["run", *map(str, words), "--json"])
    assert result.exit_code == 0, result.stderr
    return {name: value for name, value in json.loads(result.stdout).items() if name != "seconds"}


def test_a_run_with_a_study_is_the_same_run_and_resumes_to_the_same(tmp_path):
    plain = run(*RUN, "--episodes", 60)
    assert run(*RUN, "--episodes", 60, "--study", tmp_path / "whole.db") == plain
    run(*RUN, "--episodes", 30, "--study", tmp_path / "parts.db")
    resumed = answer("resume", tmp_path / "parts.db", "--episodes", 60, "--quiet")
    assert {name: value for name, value in resumed.items() if name != "seconds"} == plain
    again = answer("resume", tmp_path / "whole.db", "--quiet")
    assert again["episodes"] == 60
    with klimb.Study(tmp_path / "whole.db") as a, klimb.Study(tmp_path / "parts.db") as b:
        assert a.optimizer.to_bytes() == b.optimizer.to_bytes()
        assert a.status().done == 60


def test_the_same_command_goes_on_and_another_one_is_refused(tmp_path):
    file = tmp_path / "run.db"
    run(*RUN, "--episodes", 20, "--study", file)
    with sqlite3.connect(file) as connection:  # as if it had been killed after the update
        connection.execute("DELETE FROM mean_policy WHERE number = 2")
    connection.close()
    assert run(*RUN, "--episodes", 40, "--study", file)["updates"] == 4
    with sqlite3.connect(file) as connection:
        judged = connection.execute("SELECT number FROM mean_policy ORDER BY number").fetchall()
    connection.close()
    assert judged == [(1,), (2,), (3,), (4,)]
    before = file.read_bytes()
    result = CliRunner().invoke(cli.app, [*map(str, ("run", *RUN, "--std", 3, "--study", file))])
    assert result.exit_code == 2
    assert "std = " in result.stderr
    assert "klimb study resume" in result.stderr
    assert file.read_bytes() == before


def test_a_run_does_not_touch_a_robots_study(file):
    before = file.read_bytes()
    result = CliRunner().invoke(cli.app, ["run", "sphere", "--study", str(file)])
    assert result.exit_code == 2
    assert "ask and tell" in result.stderr
    assert "a robot goes on with" in refused(2, "resume", file)
    assert file.read_bytes() == before


def test_tensorboard_of_a_run(tmp_path):
    pytest.importorskip("tensorboardX")
    run(*RUN, "--episodes", 20, "--tensorboard", tmp_path / "board")
    assert list((tmp_path / "board").iterdir())


def test_without_tensorboardx_a_run_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    result = CliRunner().invoke(cli.app, ["run", "sphere", "--tensorboard", str(tmp_path / "board")])
    assert result.exit_code == 2
    assert "pip install 'klimb[tensorboard]'" in result.stderr


# bad input


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--std", 1], "how many parameters are there?"),
        (["--parameters", 3], "std is needed"),
        (
            ["--parameters", 3, "--names", "a,b", "--std", 1],
            "--parameters says 3 parameters, but --names says 2",
        ),
        (["--parameters", 3, "--std", "1,2"], "--std says 2 parameters, but --parameters says 3"),
        (["--parameters", 3, "--std", "wide"], "--std must be numbers with commas between, but 'wide' came"),
        (["--parameters", 3, "--std", ","], "--std must be numbers"),
        (["--parameters", 3, "--std", "@nowhere.txt"], "nowhere.txt"),
        (["--parameters", 3, "--std", 1, "--algorithm", "dr-crep"], "did you mean 'dr-creps'?"),
        (["--parameters", 3, "--std", 1, "-a", "creps", "--set", "epsilom=1"], "did you mean 'epsilon'?"),
        (["--parameters", 3, "--std", 1, "--set", "epsilon=1"], "unknown setting 'epsilon' of auto"),
        (["--parameters", 3, "--std", 1, "--set", "epsilon"], "NAME=VALUE"),
        (["--parameters", 3, "--std", 1, "--batch", 1], "batch"),
        (["--parameters", 3, "--std", 1, "--outside", "skip"], "'resample', 'clip'"),
        (["--parameters", 3, "--std", 1, "--low", 2, "--high", 1], "low must be below high"),
        (["--parameters", 0, "--std", 1], "--parameters"),
        (["--parameters", 3, "--std", 1, "--repeats", 0], "repeats"),
        (["--parameters", "many"], "--parameters"),
    ],
)
def test_create_explains_what_is_wrong_and_makes_nothing(tmp_path, words, message):
    assert message in refused(2, "create", tmp_path / "arm.db", *words).replace("│ ", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tell", 9, "--return", 1], "has no episode 9: the last one is 2"),
        (["tell", 1, "--return", 1], "was told before"),
        (["tell", 1, "--failed", "x"], "was told before"),
        (["tell", 0, "--return", 1], "whole number"),
        (["tell", 2], "say how it ended"),
        (["tell", 2, "--return", 1, "--failed", "x"], "say how it ended"),
        (["tell", 2, "--return", "nan"], "finite number"),
        (["tell", 2, "--return", "inf"], "finite number"),
        (["tell", 2, "--return", "good"], "good"),
        (["tell", "--return", 1], "say which episode"),
        (["tell", 2, "--parameters", "1,2,3", "--return", 1], "say which episode"),
        (["tell", "--parameters", "1,2,3", "--failed", "x"], "needs a --return"),
        (["tell", "--parameters", "1,2", "--return", 1], "shape (N, 3)"),
        (["tell", "--parameters", "1,2,x", "--return", 1], "'x' came"),
        (["tell", 2, "--return", 1, "--extra", "{"], "--extra must be a JSON object"),
        (["tell", 2, "--return", 1, "--extra", "[1]"], "--extra must be a JSON object"),
        (["tell", 2, "--return", 1, "--extra", "[" * 100000], "--extra must be a JSON object"),
        (["tell", 2, "--return", 1, "--extra", '{"x": NaN}'], "extra must be a JSON object"),
        (["tell", 2, "--return", 1, "--study", "0123"], "belongs to study 0123"),
        (["tell", 2**80, "--return", 1], "whole number"),
        (["ask", "--reissue-after", "soon"], "90s, 10m or 2h"),
        (["ask", "--reissue-after", "-1"], "90s, 10m or 2h"),
        (["ask", "--reissue-after", ""], "90s, 10m or 2h"),
        (["fail"], "say which episodes"),
        (["fail", 1, "--older-than", "0"], "say which episodes"),
        (["fail", 2, 2], "comes twice"),
        (["retry", 2], "is pending"),
        (["retry", 99], "has no episode 99"),
        (["export", "all.xlsx"], "must end in .csv, .jsonl or .parquet"),
        (["export", "/nowhere/at/all.csv"], "nowhere"),
        (["import", "/nowhere/at/all.csv"], "nowhere"),
        (["import", "/"], "directory"),
    ],
)
def test_a_wrong_command_is_explained_and_the_file_stays_as_it_was(file, words, message):
    done("ask", file)
    done("ask", file)
    done("tell", file, 1, "--return", 1)
    before = file.read_bytes()
    command, *rest = words
    assert message in refused(2, command, file, *rest)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == ["arm.db"]


@pytest.mark.parametrize("command", ["ask", "status", "resume", "tell", "fail", "retry", "export", "import"])
def test_every_command_refuses_what_is_no_study(tmp_path, command):
    more = {"tell": [1, "--return", 1], "fail": [1], "retry": [1], "export": ["a.csv"], "import": ["a.csv"]}
    (tmp_path / "text.db").write_text("no study at all " * 999)
    sqlite3.connect(tmp_path / "other.db").executescript("CREATE TABLE mine (x)").connection.close()
    make = (tmp_path / "newer.db", *THREE)
    done("create", *make)
    connection = sqlite3.connect(tmp_path / "newer.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    for name, message in {
        "text.db": "is not a study",
        "other.db": "is not a study",
        "newer.db": "made by a newer klimb",
        "nothing.db": "there is no study at",
    }.items():
        before = (tmp_path / name).read_bytes() if name != "nothing.db" else None
        assert message in refused(2, command, tmp_path / name, *more.get(command, []))
        assert (tmp_path / name).exists() == (before is not None)
        if before is not None:
            assert (tmp_path / name).read_bytes() == before


def test_create_does_not_replace_a_file(file):
    before = file.read_bytes()
    assert "exists already" in refused(2, "create", file, *THREE)
    assert file.read_bytes() == before


# drawing


def test_the_curve_has_its_scale_and_its_shape():
    lines = study_cli.draw_curve([0.0, 1.0, 2.0, 4.0], height=4)
    assert lines[0].startswith("4 ┤")
    assert lines[-1].startswith("0 ┤")
    columns = [line.split("┤")[1] for line in lines]
    assert [sum(column[i] != " " for column in columns) for i in range(4)] == [1, 1, 2, 4]


def test_a_curve_that_begins_far_below_its_end_is_drawn_on_a_bent_scale():
    values = [-(10.0**-k) for k in range(-3, 4)]
    columns = [line.split("┤")[1] for line in study_cli.draw_curve(values, height=10)]
    heights = [sum(column[i] != " " for column in columns) for i in range(7)]
    assert heights[:4] == sorted(set(heights[:4])), "each step of the climb shows"
    labels = [float(word) for line in study_cli.draw_curve(values) if (word := line.split("┤")[0].strip())]
    assert labels[0] == -0.001
    assert labels[-1] == -1000
    assert sorted(labels, reverse=True) == labels
    assert len(labels) == 4


@pytest.mark.parametrize("values", [[1.0], [2.0, 2.0], list(range(1000)), [-1e308, 1e308], [1e-300, 0]])
def test_any_curve_can_be_drawn(values):
    for blocks in (True, False):
        lines = study_cli.draw_curve(values, blocks=blocks)
        assert len(lines) == 8
        assert max(map(len, lines)) < 90
        assert blocks or all(line.isascii() for line in lines)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("5", 5)]
)
def test_times(text, seconds):
    assert study_cli._seconds("--x", text) == seconds


# the manual

MANUAL = (Path(__file__).parent.parent / "docs" / "studies.md").read_text()


def test_the_commands_of_the_manual_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```sh\n(.*?)```", MANUAL, flags=re.DOTALL)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert len(commands) == 10
    for program, study, *words in commands:
        assert (program, study) == ("klimb", "study")
        done(*words)
    status = answer("status", "arm.db")
    assert (status["done"], status["failed"], status["updates"]) == (3, 1, 1)


def test_the_manual_knows_every_column(file):
    connection = sqlite3.connect(file)
    for table in ("study", "state", "samples", "trials", "updates"):
        (line,) = (line for line in MANUAL.splitlines() if line.startswith(f"| `{table}` |"))
        for _, column, *_ in connection.execute(f"PRAGMA table_info({table})"):
            assert column == "one" or re.search(rf"\b{column}\b", line), (table, column)
    connection.close()
