"""klimb run and klimb list with the baselines."""

import json
from importlib.util import find_spec

import numpy as np
import pytest
from test_cli import answer, invoke

import klimb
from klimb import cli
from klimb.algorithms import BASELINES
from klimb.paper import usual_settings
from klimb.tasks import TASKS, TaskEntry

INSTALLED = {
    "peers": find_spec("cma") is not None,
    "deep": all(find_spec(name) is not None for name in ("torch", "stable_baselines3", "sb3_contrib")),
}
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            entry.extra is not None and not INSTALLED[entry.extra],
            reason=f"needs pip install 'klimb[{entry.extra}]'",
        ),
    )
    for name, entry in BASELINES.items()
]
STEPWISE = {"ppo", "trpo", "reinforce"}
SHORT = ["--episodes", "80", "--batch", "20"]


@pytest.fixture
def counting(monkeypatch):
    class Counting:
        n_parameters, optimum, initial_std = 3, None, 1.0
        evaluated = 0

        def evaluate(self, theta, seed=0):
            Counting.evaluated += len(theta)
            return -np.square(np.asarray(theta)).sum(axis=1)

    monkeypatch.setitem(TASKS, "counting", TaskEntry("counts", Counting))
    return Counting


@pytest.mark.parametrize("name", NAMES)
def test_every_baseline_runs_and_answers_in_strict_json(name, tmp_path):
    plot, save = tmp_path / "curve.png", tmp_path / "learned.npz"
    data = answer("lqr", "-a", name, *SHORT, "--plot", plot, "--save", save)
    assert data["algorithm"] == name
    assert data["episodes"] == 80
    assert data["batch"] == 20
    assert data["optimum"] == pytest.approx(-1.3141, abs=1e-4)
    assert data["mean_return"] < data["optimum"]
    assert data["mean_policy_return"] < data["optimum"]
    assert data["n_failed"] == 0
    assert data["settings"].keys() == BASELINES[name].settings.keys()
    assert plot.stat().st_size > 1000
    with np.load(save) as file:
        assert json.loads(str(file["header"]))["algorithm"] == name
    if name not in STEPWISE:
        assert np.array_equal(klimb.baselines.load(save).mean, cli._learned_mean(save))


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_the_papers_where_it_has_any(name):
    settings, batch = usual_settings("lqr", name, 100)
    data = answer("lqr", "-a", name, "--episodes", 200 if name in STEPWISE else 120)
    assert data["batch"] == batch or name in ("cma-es", "sep-cma", "vkd-cma", "cr-fm-nes")
    assert data["settings"].items() >= settings.items()
    if name in STEPWISE:
        assert data["std"] is None
        assert data["episodes"] == 200


def test_ars_v2_runs():
    assert answer("lqr", "-a", "ars", "--set", "version=v2-t", "--episodes", 64)["updates"] == 2


def test_tasks_that_count_success_do_so_for_those_who_act():
    data = answer(
        "ship-steering", "-a", "reinforce", "--episodes", 10, "--batch", 5, "--option", "horizon=300"
    )
    assert 0 <= data["success_rate"] <= 1
    assert 0 <= data["mean_policy_success_rate"] <= 1


def test_run_is_what_train_does():
    data = answer("lqr", "-a", "reinforce", *SHORT, "--seed", 3)
    task = klimb.make_task("lqr")
    result = klimb.baselines.train(task, klimb.make_algorithm("reinforce"), episodes=80, batch=20, seed=3)
    assert data["best_return"] == result.best_return
    assert data["mean_policy_return"] == pytest.approx(task.evaluate(result.mean[None])[0], rel=1e-12)


def test_search_that_ends_by_itself_says_so():
    result = invoke("run", "sphere", "-a", "l-bfgs", "--json")
    data = json.loads(result.stdout.splitlines()[-1])
    assert data["ended"] is True
    assert data["episodes"] < 100
    assert "has come to its end" in result.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-a", "reinforce"], "can learn that, dr-creps or cma-es for example"),
        (["-a", "ars", "--set", "version=v2-t"], "can learn that, dr-creps or cma-es for example"),
        (["-a", "ars", "--batch", "7"], "must be even"),
        (["-a", "nelder-meat"], "did you mean 'nelder-mead'?"),
        (["-a", "l-bfgs", "--set", "tolerance=0"], "tolerance must be a number above 0"),
        pytest.param(
            ["-a", "ppo"],
            "ppo acts step by step in an environment, and Counting has none",
            marks=pytest.mark.skipif(not INSTALLED["deep"], reason="needs pip install 'klimb[deep]'"),
        ),
        *(
            pytest.param(
                ["-a", "cma-es", *words],
                "needs a population (batch) of at least 4, but 3 came; nelder-mead",
                marks=pytest.mark.skipif(not INSTALLED["peers"], reason="needs pip install 'klimb[peers]'"),
            )
            for words in (["--batch", "3"], ["--episodes", "3"])
        ),
    ],
)
def test_algorithm_that_cannot_do_it_exits_2_before_any_episode(words, said, counting):
    result = invoke("run", "counting", *words)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert counting.evaluated == 0


def test_test_functions_have_no_environment_worth_acting_in():
    result = invoke("run", "sphere", "-a", "reinforce")
    assert result.exit_code == 2
    assert "Function has none" in result.stderr


def test_workers_are_of_no_use_to_those_who_act():
    result = invoke("run", "lqr", "-a", "reinforce", "--workers", 2)
    assert result.exit_code == 2
    assert "--workers is of no use to reinforce" in result.stderr


@pytest.mark.parametrize("name", ["ppo", "vkd-cma"])
def test_missing_extra_is_named_with_its_command_before_any_episode(name, counting, monkeypatch):
    missing = {"deep": ("no_such_module",), "peers": ("no_such_module",)}
    monkeypatch.setattr(klimb.algorithms, "EXTRAS", missing)
    result = invoke("run", "counting", "-a", name)
    assert result.exit_code == 2
    assert f"needs no_such_module: pip install 'klimb[{BASELINES[name].extra}]'" in result.stderr
    assert counting.evaluated == 0
    listed = invoke("list", "algorithms").stdout
    assert "not installed" in listed
    assert name in listed


def test_list_shows_reference_extra_and_settings():
    listed = {entry["name"]: entry for entry in json.loads(invoke("list", "algorithms", "--json").stdout)}
    assert listed.keys() >= {*BASELINES, "nes", "es", "cem"}
    assert listed["ppo"]["extra"] == "deep"
    assert listed["ppo"]["settings"]["learning_rate"] == 3e-3
    assert listed["cma-es"]["extra"] == "peers"
    assert listed["nelder-mead"]["extra"] is None
    assert "Williams 1992" in listed["reinforce"]["reference"]
    assert "pip install 'klimb[deep]'" in invoke("list", "algorithms").stdout


@pytest.mark.skipif(not INSTALLED["peers"], reason="needs pip install 'klimb[peers]'")
def test_what_a_baseline_learned_can_be_replayed(tmp_path):
    answer("ship-steering", "-a", "vkd-cma", "--episodes", 100, "--save", tmp_path / "x.npz")
    result = invoke("replay", "ship-steering", tmp_path / "x.npz", "--output", tmp_path / "x.png")
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "x.png").stat().st_size > 1000
