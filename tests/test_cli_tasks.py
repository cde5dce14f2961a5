"""The command line on robots, environments and tasks of one's own."""

import json

import numpy as np
import pytest
from test_cli import answer, invoke

import klimb
from klimb.algorithms import ALGORITHMS, make_algorithm
from klimb.paper import EPISODES, SETTINGS, usual_settings
from klimb.tasks import TASKS


def same_but_for_time(data):
    return {name: value for name, value in data.items() if name != "seconds"}


def test_a_run_tells_who_succeeded():
    data = answer("ship-steering", "-a", "dr-creps", "--episodes", 1500)
    task = klimb.make_task("ship-steering")
    optimizer = klimb.Optimizer(
        klimb.dr_creps(3.4, 20.0, 200, 0.1), mean=np.zeros(450), std=0.07, seed=data["seed"]
    )
    episodes = 0
    while True:  # the paper's settings, by hand, up to the first success
        theta = optimizer.ask(15)
        returns, success = task.evaluate(theta, return_success=True)
        if success.any():
            break
        episodes += 15
        optimizer.tell(theta, returns)
    assert data["first_success"] == episodes + np.argmax(success) + 1
    assert data["success_rate"] > 0.5
    assert data["mean_policy_success_rate"] == 1.0


def test_a_task_that_does_not_count_successes_says_nothing_of_them():
    data = answer("lqr", "--episodes", 100)
    assert data["success_rate"] is data["first_success"] is None
    assert "success" not in invoke("run", "lqr", "--episodes", 100).stdout
    assert "success rate" in invoke("run", "ship-steering", "--episodes", 60).stdout


def test_the_papers_settings_are_taken_where_none_are_given():
    words = ("ship-steering", "-a", "dr-creps", "--episodes", 60)
    data = answer(*words)
    assert data["batch"] == 15
    expected = {"epsilon": 3.4, "kappa": 20.0, "n_effective": 200, "damping": 0.1}
    assert {name: data["settings"][name] for name in expected} == expected
    other = answer(*words, "--set", "epsilon=1.5", "--batch", 20)
    assert (other["settings"]["epsilon"], other["settings"]["kappa"], other["batch"]) == (1.5, 20.0, 20)


def test_a_smaller_task_than_the_papers_leaves_the_number_of_effective_parameters_open():
    words = ("--option", "n_states=4", "--option", "n_effective=2", "--episodes", 100)
    data = answer("lqr", "-a", "dr-creps", *words)
    assert data["settings"]["n_effective"] is None
    assert data["settings"]["epsilon"] == 4.7


@pytest.mark.parametrize("task", SETTINGS)
def test_all_settings_of_the_paper_make_an_algorithm(task):
    assert task in TASKS
    assert EPISODES[task] > 0
    for name in SETTINGS[task]:
        settings, batch = usual_settings(task, name, klimb.make_task(task).n_parameters)
        assert make_algorithm(name, **settings).name == name
        assert batch >= 15
    assert usual_settings("sphere", "creps", 10) == ({}, ALGORITHMS["creps"].batch)


def test_workers_change_nothing_but_the_time():
    words = ["ship-steering", "--option", "start=random", "--episodes", 60]
    assert same_but_for_time(answer(*words, "--workers", 2)) == same_but_for_time(answer(*words))


def test_an_environment_is_learned_with_the_named_policy():
    words = ["gymnasium:Pendulum-v1", "--option", "horizon=20", "--episodes", 20, "--batch", 10]
    data = answer(*words, "--policy", "linear")
    assert data["n_parameters"] == 3
    assert data["options"]["policy"] == "linear"
    assert answer(*words, "--policy", "promp", "--option", "n_bases=5")["n_parameters"] == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gymnasium:CartPole-v1"], "Discrete"),
        (["gymnasium:Pendulm-v1"], "Did you mean 'Pendulum-v1'"),
        (["gymnasium:Pendulum-v1", "--policy", "liner"], "did you mean 'linear'"),
        (["gymnasium:Pendulum-v1", "--option", "biass=true"], "did you mean 'bias'"),
        (["air-hockey", "--option", "puck=moving"], "'incoming', 'random', 'still'"),
        (["ball-stopping", "--option", "bal=random"], "did you mean 'ball'"),
        (["lqr", "--policy", "linear"], "unknown option 'policy'"),
    ],
)
def test_a_task_that_cannot_be_made_exits_2_and_says_why(words, message):
    result = invoke("run", *words, "--episodes", 20)
    assert result.exit_code == 2
    assert message in result.stderr


OWN = """
import numpy as np
from klimb.tasks import episode_seeds

class Good:
    n_parameters, initial_std, optimum = 3, 1.0, 0.0
    def evaluate(self, theta, seed=0):
        theta = np.asarray(theta, dtype=float)
        if theta.ndim != 2 or theta.shape[1] != 3:
            raise ValueError("theta must be (N, 3)")
        episode_seeds(seed, len(theta))
        return -(theta**2).sum(1)

class Forgetful(Good):
    count = 0
    def evaluate(self, theta, seed=0):
        Forgetful.count += 1
        return super().evaluate(theta, seed) + Forgetful.count
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_tasks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_check_finds_a_good_task_good(own):
    result = invoke("check", "own_tasks:Good")
    assert result.exit_code == 0
    assert "error" not in result.stdout


def test_check_finds_what_is_wrong_with_a_task_and_exits_1(own):
    result = invoke("check", "own_tasks:Forgetful", "--json")
    assert result.exit_code == 1
    wrong = {finding["name"] for finding in json.loads(result.stdout) if finding["status"] == "error"}
    assert "deterministic" in wrong


@pytest.mark.parametrize(
    ("place", "message"),
    [("own_tasks:God", "did you mean 'Good'"), ("own_task:Good", "own_tasks"), ("own_tasks", "module:name")],
)
def test_check_of_what_is_not_there_exits_2(own, place, message):
    result = invoke("check", place)
    assert result.exit_code == 2
    assert message in result.stderr
