"""The command line, from the outside: what it prints, writes and exits with."""

import json
import os
import signal
import subprocess
import sys
import time

import matplotlib.image
import numpy as np
import pytest
from typer.testing import CliRunner

import klimb
from klimb import cli
from klimb._command import to_value
from klimb.algorithms import ALGORITHMS, make_algorithm
from klimb.report.curves import plot_curve, round_numbers
from klimb.tasks import TASKS, TaskEntry

SHORT = ["--episodes", "60", "--batch", "20"]


def invoke(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def answer(*words):
    result = invoke("run", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1], parse_constant=pytest.fail)


def process(*words, code="from klimb.cli import main; main()"):
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"},
    )


class Counting:
    """A task that counts its episodes; those with a large first parameter fail, and Ctrl-C comes in one."""

    n_parameters, optimum, initial_std = 3, None, 1.0
    evaluated = 0
    interrupts = ()
    breaks_after = 10**9
    all_fail = False

    def evaluate(self, theta, seed=0):
        Counting.evaluated += len(theta)
        if Counting.evaluated > Counting.breaks_after:
            raise ValueError("the robot does not answer")
        for _ in Counting.interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        Counting.interrupts = ()
        theta = np.asarray(theta)
        returns = -np.square(theta).sum(axis=1)
        return np.where((theta[:, 0] > 1.0) | Counting.all_fail, np.nan, returns)


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setitem(TASKS, "counting", TaskEntry("counts", Counting))
    monkeypatch.setattr(Counting, "evaluated", 0)
    monkeypatch.setattr(Counting, "interrupts", ())
    monkeypatch.setattr(Counting, "breaks_after", 10**9)
    monkeypatch.setattr(Counting, "all_fail", False)
    return Counting


# run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_and_answers_in_strict_json(algorithm):
    data = answer("sphere", "-a", algorithm, "--episodes", 500)
    assert data["algorithm"] == algorithm
    assert data["klimb"] == klimb.__version__
    assert data["batch"] == (ALGORITHMS[algorithm].batch or make_algorithm(algorithm).usual_batch(10))
    assert data["episodes"] == 500 - 500 % data["batch"]
    assert data["optimum"] == 0
    assert data["mean_return"] <= 0
    assert data["n_failed"] == 0


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs(task):
    assert answer(task, *SHORT)["n_parameters"] == klimb.make_task(task).n_parameters


def test_same_seed_gives_the_same_answer_and_another_seed_another():
    def run(seed):
        return {
            name: value for name, value in answer("lqr", *SHORT, "--seed", seed).items() if name != "seconds"
        }

    assert run(3) == run(3)
    assert run(3)["best_return"] != run(4)["best_return"]


def test_run_is_what_maximize_does():
    words = ("-a", "dr-creps", "--set", "epsilon=2", "--set", "covariance=diagonal")
    data = answer("lqr", *SHORT, "--seed", 5, *words)
    task = klimb.make_task("lqr")
    result = klimb.maximize(
        task,
        klimb.dr_creps(epsilon=2, covariance="diagonal"),
        mean=np.zeros(100),
        std=0.3,
        episodes=60,
        batch=20,
        seed=5,
    )
    assert data["best_return"] == result.best_return
    assert data["mean_policy_return"] == pytest.approx(task.evaluate(result.mean[None])[0], rel=1e-12)


def test_klimbs_own_search_is_taken_in_python_where_none_is_named():
    data = answer("sphere", "--algorithm", "auto", "--episodes", 80, "--seed", 3)
    assert (data["algorithm"], data["batch"]) == ("auto", 8)
    task = klimb.make_task("sphere")
    result = klimb.maximize(task, mean=np.zeros(10), std=task.initial_std, episodes=80, seed=3)
    assert result.best_return == data["best_return"]
    assert result.optimizer.algorithm.name == klimb.Optimizer(mean=[0.0], std=1.0).algorithm.name == "auto"


def test_settings_and_options_arrive_with_their_types():
    data = answer(
        "sphere",
        *SHORT,
        *("--algorithm", "dr-creps"),
        *("--set", "n-effective=4", "--set", "reduce=false", "--set", "effectiveness=mutual-information"),
        *("--set", "kappa=inf", "--option", "n_parameters=6", "--option", "rotated=true", "--std", "0.5"),
    )
    assert data["settings"]["n_effective"] == 4
    assert data["settings"]["reduce"] is False
    assert data["settings"]["effectiveness"] == "mutual-information"
    assert data["settings"]["kappa"] is None  # infinity is no JSON
    assert data["options"] == {"n_parameters": 6, "rotated": True}
    assert data["std"] == 0.5


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("3", 3),
        ("3.0", 3.0),
        ("1e-3", 1e-3),
        ("True", True),
        ("false", False),
        ("none", None),
        ("full", "full"),
    ],
)
def test_values_are_read_as_what_they_look_like(word, value):
    read = to_value(word)
    assert read == value
    assert type(read) is type(value)


def test_draws_that_judge_the_result_are_not_counted_and_failures_are(counting):
    data = answer("counting", *SHORT)
    assert data["episodes"] == 60
    assert counting.evaluated == 60 + 2 * cli.EVALUATIONS
    assert data["n_failed"] > 0
    assert data["optimum"] is None


def test_summary_names_what_matters_and_warns_of_one_hot_weights():
    printed = invoke("run", "lqr", *SHORT, "-a", "dr-creps").stdout
    for words in (
        "mean return under the belief",
        "return of the mean policy",
        "best episode",
        "optimum",
        "-1.3141",
    ):
        assert words in printed
    assert "epsilon = 4.7 is at least log N = log 20 = 3.00" in printed
    assert "one-hot" in printed
    assert "one-hot" not in invoke("run", "lqr", *SHORT, "-a", "dr-creps", "--set", "epsilon=0.5").stdout
    assert "smaller beta" in invoke("run", "lqr", *SHORT, "-a", "rwr", "--set", "beta=100").stdout


def test_quiet_prints_nothing_but_the_json():
    assert invoke("run", "sphere", *SHORT, "--quiet").output == ""
    assert len(invoke("run", "sphere", *SHORT, "--quiet", "--json").output.splitlines()) == 1


def test_plot_and_save_write_files(tmp_path):
    plot, save = tmp_path / "curve.png", tmp_path / "optimizer.npz"
    data = answer("lqr", *SHORT, "--plot", plot, "--save", save)
    image = matplotlib.image.imread(plot)
    assert min(image.shape[:2]) > 300
    assert image.std() > 0.01
    loaded = klimb.Optimizer.load(save)
    assert loaded.iteration == data["updates"] == 3
    assert loaded.seed == 0


# wrong usage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lqrr"], "did you mean 'lqr'?"),
        (["lqr", "-a", "dr-crep"], "did you mean 'dr-creps'?"),
        (["lqr", "-a", "creps", "--set", "epsilom=1"], "did you mean 'epsilon'?"),
        (["lqr", "--option", "n_state=5"], "did you mean 'n_states'?"),
        (["lqr", "-a", "creps", "--set", "epsilon=-1"], "epsilon must be a number above 0"),
        (["lqr", "-a", "creps", "--set", "epsilon=big"], "epsilon must be a number above 0"),
        (["lqr", "--set", "epsilon"], "NAME=VALUE"),
        (["lqr", "--set", "epsilon=1", "--set", "epsilon=2"], "twice"),
        (["lqr", "-a", "creps", "--set", "n_effective=101"], "n_effective must be a whole number from 1"),
        (["lqr", "--option", "n_states=2.5"], "n_states must be a whole number"),
        (["lqr", "--std", "-1"], "std must lie between"),
        (["lqr", "--plot", "curve.bmp"], ".png, .svg, .pdf"),
        (["lqr", "--plot", "x.png", "--save", "x.png"], "two files"),
        (["lqr", "--batch", "1"], "--batch"),
        (["lqr", "--episodes", "0"], "--episodes"),
        (["lqr", "--seed", "-1"], "--seed"),
        ([], "Missing argument"),
    ],
)
def test_wrong_usage_exits_2_with_a_sentence(words, said):
    result = invoke("run", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("option", ["--plot", "--save"])
@pytest.mark.parametrize("place", ["missing/x.png", "directory.png", "file/x.png"])
def test_unwritable_file_exits_2_before_any_episode(option, place, counting, tmp_path):
    (tmp_path / "directory.png").mkdir()
    (tmp_path / "file").touch()
    result = invoke("run", "counting", option, tmp_path / place)
    assert result.exit_code == 2
    assert option in result.stderr
    assert counting.evaluated == 0


def test_check_of_files_leaves_no_trace(tmp_path, counting):
    (tmp_path / "x.npz").write_text("old")
    invoke(
        "run", "counting", "--set", "epsilon=-1", "--save", tmp_path / "x.npz", "--plot", tmp_path / "x.png"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]
    assert (tmp_path / "x.npz").read_text() == "old"


# what goes wrong while running


def test_failure_while_running_exits_1_and_keeps_what_was_learned(counting, tmp_path):
    counting.breaks_after = 50
    result = invoke("run", "counting", *SHORT, "--save", tmp_path / "x.npz")
    assert result.exit_code == 1
    assert "the robot does not answer" in result.stderr
    assert "after 40 of 60 episodes" in result.stderr
    assert "Traceback" not in result.stderr
    assert klimb.Optimizer.load(tmp_path / "x.npz").iteration == 2


def test_run_without_any_good_episode_exits_1(counting):
    counting.all_fail = True
    result = invoke("run", "counting", *SHORT, "--json")
    assert result.exit_code == 1
    assert "nothing to learn from" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_file_that_cannot_be_saved_in_the_end_exits_1_and_still_answers(counting, tmp_path, monkeypatch):
    def save(self, path):
        raise OSError("disk full")

    monkeypatch.setattr(klimb.Optimizer, "save", save)
    result = invoke("run", "counting", *SHORT, "--save", tmp_path / "x.npz", "--json")
    assert result.exit_code == 1
    assert "disk full" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["episodes"] == 60


def test_ctrl_c_ends_after_the_batch_and_saves(counting, tmp_path):
    counting.interrupts = (1,)
    result = invoke(
        "run", "counting", *SHORT, "--save", tmp_path / "x.npz", "--plot", tmp_path / "x.png", "--json"
    )
    assert result.exit_code == 130
    assert "after 20 of 60 episodes" in result.stderr
    data = json.loads(result.stdout.splitlines()[-1])
    assert data["interrupted"] is True
    assert data["episodes"] == 20
    assert klimb.Optimizer.load(tmp_path / "x.npz").iteration == 1
    assert (tmp_path / "x.png").stat().st_size > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_second_ctrl_c_ends_at_once(counting, tmp_path):
    counting.interrupts = (1, 2)
    result = invoke("run", "counting", *SHORT, "--save", tmp_path / "x.npz")
    assert result.exit_code == 130
    assert "after 0 of 60 episodes" in result.stderr
    assert not (tmp_path / "x.npz").exists()  # nothing was learned yet


# list, version, help


def test_list_names_every_task_and_algorithm():
    tasks, algorithms = invoke("list", "tasks"), invoke("list", "algorithms")
    assert tasks.exit_code == algorithms.exit_code == 0
    assert all(name in tasks.stdout for name in TASKS)
    assert all(name in algorithms.stdout for name in ALGORITHMS)
    assert "n_states=10" in tasks.stdout
    assert "epsilon=4.7" in algorithms.stdout
    assert "Memmel et al. 2022" in algorithms.stdout


def test_list_in_json_has_settings_with_defaults():
    (dr_creps,) = (
        entry
        for entry in json.loads(invoke("list", "algorithms", "--json").stdout)
        if entry["name"] == "dr-creps"
    )
    assert dr_creps["settings"]["epsilon"] == 4.7
    assert dr_creps["batch"] == 50
    tasks = {entry["name"]: entry for entry in json.loads(invoke("list", "tasks", "--json").stdout)}
    assert tasks["lqr"]["options"]["horizon"] == 50


def test_task_whose_simulator_is_missing_is_listed_nevertheless(monkeypatch):
    monkeypatch.setitem(TASKS, "robot", TaskEntry("moves", "no_such_simulator:Robot"))
    assert "no_such_simulator" in invoke("list", "tasks").stdout
    result = invoke("run", "robot")
    assert result.exit_code == 2
    assert "no_such_simulator" in result.stderr


def test_list_of_something_else_says_what_there_is():
    result = invoke("list", "robots")
    assert result.exit_code == 2
    assert "There are: algorithms, figures, tasks." in result.stderr


def test_version():
    assert invoke("--version").stdout == f"klimb {klimb.__version__}\n"


def test_the_package_is_the_command():
    words = [sys.executable, "-m", "klimb", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"klimb {klimb.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["list", "--help"]])
def test_help_has_an_example(words):
    result = invoke(*words)
    assert result.exit_code == 0
    assert "klimb list" in result.stdout or "klimb run" in result.stdout


def test_completion_knows_tasks_and_algorithms():
    assert cli._complete_task("lq") == [("lqr", TASKS["lqr"].description)]
    assert [name for name, _ in cli.study_cli.complete_algorithm("dr")] == ["dr-reps", "dr-creps"]
    assert cli._complete_kind("") == ["tasks", "algorithms", "figures"]


# as a process


def test_exit_codes_of_the_process(tmp_path):
    good, bad = process("run", "sphere", *SHORT, "--json"), process("run", "spere")
    out, err = good.communicate(timeout=120)
    assert good.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["task"] == "sphere"
    assert err == ""  # no progress bar where stderr is no terminal
    out, err = bad.communicate(timeout=120)
    assert bad.returncode == 2
    assert err.startswith("klimb: unknown task 'spere': did you mean 'sphere'?")


INTERRUPTED = """
import os, signal
from klimb.cli import main
from klimb.tasks.lqr import LQR

evaluate, batches = LQR.evaluate, []

def interrupted(self, theta, seed=0):
    batches.append(len(theta))
    if len(batches) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return evaluate(self, theta, seed)

LQR.evaluate = interrupted
main()
"""


def test_ctrl_c_of_the_process_exits_130_and_saves(tmp_path):
    running = process("run", "lqr", "--episodes", 10**8, "--save", tmp_path / "x.npz", code=INTERRUPTED)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 130, err
    assert f"after 24 of {10**8} episodes" in err
    assert klimb.Optimizer.load(tmp_path / "x.npz").iteration == 3


# the picture


def test_picture_shows_the_climb_from_far_below_to_the_end(tmp_path):
    mean = -np.geomspace(1e4, 1.0, 50)
    curve = {"episodes": np.arange(50) * 10 + 10, "mean_return": mean, "best_return": mean / 2}
    for name in ("x.png", "x.svg", "x.pdf"):
        plot_curve(curve, tmp_path / name, title="a, b", optimum=-0.4)
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    "mean", [[-1.0], [0.0, 0.0], [-1.0, np.nan, -2.0], [1e9, 1e9 + 1], [-1e300, -1.0], [-1e-9, 0.0]]
)
def test_picture_of_any_curve_can_be_drawn(mean, tmp_path):
    mean = np.array(mean)
    curve = {
        "episodes": np.arange(mean.size) + 1.0,
        "mean_return": mean,
        "best_return": np.fmax.accumulate(mean),
    }
    plot_curve(curve, tmp_path / "x.png")
    plot_curve(curve, tmp_path / "y.png", optimum=2.0)


def test_picture_of_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one finite return"):
        plot_curve({"episodes": [1], "mean_return": [np.nan], "best_return": [-np.inf]}, tmp_path / "x.png")


def test_numbers_on_a_bent_axis_are_round_and_within_it():
    numbers = round_numbers(-60.0, -1.1, -1.3, lambda y: float(np.arcsinh((y + 1.3) / 0.3)))
    assert {-50.0, -10.0, -5.0, -2.0} <= set(numbers)
    assert numbers == sorted(numbers)
    assert min(numbers) >= -60
    assert max(numbers) <= -1.1
    assert 5 <= len(numbers) <= 10
