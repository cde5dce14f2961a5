"""The conformance check: klimb's tasks pass, and the try made for a promise finds it broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from klimb.check import Finding, check_task, load_object, load_task
from klimb.tasks import TASKS, episode_seeds, make_task, task_from_function


class Good:
    """A noisy bowl that keeps every promise."""

    n_parameters = 3
    initial_std = 1.0
    optimum = None

    def evaluate(self, theta, seed=0):
        theta = np.array(theta, dtype=float)
        if theta.ndim != 2 or theta.shape[1] != self.n_parameters:
            raise ValueError("shape")
        seeds = episode_seeds(seed, len(theta))
        noise = np.array([np.random.default_rng(s).normal() for s in seeds])
        return -(theta[:, 0] ** 2) + noise


def broken(**changes):
    return type("Broken", (Good,), changes)()


def statuses(task):
    return {finding.name: finding.status for finding in check_task(task)}


def not_ok(task):
    return {name: status for name, status in statuses(task).items() if status != "ok"}


@pytest.mark.parametrize("name", [*TASKS, "gymnasium:Pendulum-v1"])
def test_klimbs_tasks_pass(name):
    findings = check_task(make_task(name), episodes=4)
    assert [finding for finding in findings if finding.status == "error"] == []
    names = [finding.name for finding in findings]
    assert {"returns", "finite", "deterministic", "seeds", "any batch", "theta", "pickle", "speed"} <= set(
        names
    )
    assert all(isinstance(finding, Finding) and finding.detail for finding in findings)


def test_a_task_of_ones_own_passes():
    assert not_ok(Good()) == {}
    assert "the seed matters" in {finding.detail for finding in check_task(Good())}


def test_findings_unpack_into_rows_for_a_table():
    for status, name, detail in check_task(Good()):
        assert status == "ok"
        assert "\n" not in name + detail


# Every promise, broken


def changes_theta(self, theta, seed=0):
    returns = Good.evaluate(self, theta, seed)
    if theta.flags.writeable:
        theta[:] = 0
    return returns


def forgets_the_seed(self, theta, seed=0):
    return Good.evaluate(self, theta, seed) + np.random.default_rng().normal(size=len(theta))


def one_stream(self, theta, seed=0):
    base = Good.evaluate(self, theta, 0 * episode_seeds(seed, len(theta)))
    return base + np.random.default_rng(np.ravel(seed)[0]).normal(size=len(theta))


def compares(self, theta, seed=0):
    returns = Good.evaluate(self, theta, seed)
    return returns - returns.mean() if len(returns) else returns


def carries_over(self, theta, seed=0):
    returns = Good.evaluate(self, theta, seed)
    return returns + 1e-12 * np.arange(len(returns))


def accepts_all(self, theta, seed=0):
    count = len(theta)
    return Good.evaluate(
        self, np.atleast_2d(theta)[:, :3], np.resize(episode_seeds(seed, np.size(seed)), count)
    )[:count]


def one_seed_only(self, theta, seed=0):
    return Good.evaluate(self, theta, int(seed))


def failing(share):
    def evaluate(self, theta, seed=0):
        returns = Good.evaluate(self, theta, seed)
        draws = np.array([np.random.default_rng([1, s]).random() for s in episode_seeds(seed, len(theta))])
        return np.where(draws < share, np.nan, returns)

    return evaluate


def with_success(self, theta, seed=0, *, return_success=False):
    returns = Good.evaluate(self, theta, seed)
    return (returns, returns.astype(int)) if return_success else returns


@pytest.mark.parametrize(
    ("changes", "name", "status", "words"),
    [
        ({"n_parameters": 2.5}, "n_parameters", "error", "whole number of at least 1, but it is 2.5"),
        ({"n_parameters": None}, "n_parameters", "error", "but it is None"),
        ({"initial_std": -1}, "initial_std", "error", "above 0, but it is -1"),
        ({"initial_std": np.nan}, "initial_std", "error", "but it is nan"),
        ({"optimum": "high"}, "optimum", "error", "a number or None"),
        ({"evaluate": None}, "evaluate", "error", "is missing"),
        ({"evaluate": lambda self, theta: theta[:, 0]}, "evaluate", "error", "must take (theta, seed=0)"),
        ({"evaluate": lambda self, theta, seed=0: list(theta[:, 0])}, "returns", "error", "they are list"),
        ({"evaluate": lambda self, theta, seed=0: theta[:, :1]}, "returns", "error", "(8, 1) float64"),
        ({"evaluate": lambda self, theta, seed=0: np.float32(theta[:, 0])}, "returns", "error", "float32"),
        ({"evaluate": lambda self, theta, seed=0: 1 / 0}, "returns", "error", "raised ZeroDivisionError"),
        ({"evaluate": lambda self, theta, seed=0: theta[:, 0] + np.inf}, "finite", "error", "+infinity"),
        ({"evaluate": failing(2.0)}, "finite", "error", "8 of 8 episodes failed"),
        ({"evaluate": failing(0.4)}, "finite", "warning", "of 8 episodes failed"),
        ({"evaluate": lambda self, theta, seed=0: 0 * theta[:, 0]}, "finite", "warning", "plateau"),
        ({"evaluate": forgets_the_seed}, "deterministic", "error", "Derive all randomness"),
        ({"evaluate": one_stream}, "any batch", "error", "nothing but its own theta and seed"),
        ({"evaluate": compares}, "any batch", "error", "one at a time"),
        ({"evaluate": carries_over}, "any batch", "error", "in another order"),
        ({"evaluate": one_seed_only}, "seeds", "error", "raised TypeError"),
        ({"evaluate": changes_theta}, "theta", "error", "changed the array"),
        ({"evaluate": accepts_all}, "wrong input", "error", "was accepted"),
        ({"optimum": -50.0}, "optimum", "warning", "is -50, but an episode returned"),
        ({"evaluate": with_success}, "success", "error", "must be (8,) bool, but it is (8,) int64"),
    ],
)
def test_a_broken_promise_is_found(changes, name, status, words):
    task = broken(**changes)
    (finding,) = [finding for finding in check_task(task) if (finding.name, finding.status) == (name, status)]
    assert words in finding.detail


def test_a_missing_optimum_and_a_task_that_cannot_be_pickled_are_warnings_only():
    bare = type("Bare", (), {"n_parameters": 3, "initial_std": 1.0, "evaluate": Good.evaluate})()
    assert not_ok(bare) == {"optimum": "warning", "pickle": "warning"}  # a class without a module cannot


def test_an_empty_batch_is_a_warning_only():
    def evaluate(self, theta, seed=0):
        return np.array([Good.evaluate(self, theta, seed)]).max(axis=0) + 0 * np.max(theta)

    assert not_ok(broken(evaluate=evaluate)).get("empty batch") == "warning"


# Loading


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A directory with a user's module in it, which Python does not know of."""
    (tmp_path / "my_robot.py").write_text(
        "from klimb.tasks import task_from_function\n"
        "def score(theta, seed): return -sum(theta**2)\n"
        "task = task_from_function(score, 2)\n"
        "def make(n=2): return task_from_function(score, n)\n"
        "number = 3\n"
        "class Space:\n    inside = task\n"
    )
    (tmp_path / "my_broken.py").write_text("import no_such_simulator\n")
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "hand.py").write_text("from my_robot import task\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def test_tasks_are_loaded_from_the_current_directory(project):
    task = load_task("my_robot:task")
    assert load_object("my_robot:task") is task
    assert load_task("my_robot:Space.inside") is task
    assert load_task("my_package.hand:task") is task
    assert load_task("my_robot:make").n_parameters == 2
    assert load_task("my_robot:make", n=5).n_parameters == 5
    assert not_ok(task) == {}


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("my_robot", r"must be written module:name, such as my_task:task, but 'my_robot' came"),
        (":task", "must be written module:name"),
        ("my_robot.py:task", r"as Python imports it, my_robot:task, but 'my_robot.py:task' came"),
        ("./my_package/hand.py:task", r"as Python imports it, my_package.hand:task"),
        ("my_robt:task", r"no module 'my_robt' in .*did you mean 'my_robot'\?"),
        ("my_package.foot:task", r"no module 'my_package.foot'"),
        ("my_pack.hand:task", r"no module 'my_pack.hand'"),
        ("my_robot:tusk", r"my_robot has no 'tusk': did you mean 'task'\?"),
        ("my_robot:Space.outside", r"my_robot has no 'Space.outside': did you mean 'inside'\?"),
        ("my_robot:number", "must be a task, or a class or function that makes one, but it is 3"),
        ("my_robot:score", r"cannot be called with the options \[\]: .*'theta'.*task_from_function"),
    ],
)
def test_what_cannot_be_loaded_is_said(project, place, message):
    with pytest.raises(ValueError, match=message):
        load_task(place)


def test_options_for_a_finished_task_and_faults_inside_a_module_are_said(project):
    with pytest.raises(ValueError, match=r"my_robot:task is a task already, .* but \['n'\] came"):
        load_task("my_robot:task", n=3)
    with pytest.raises(ModuleNotFoundError, match="no_such_simulator"):
        load_task("my_broken:task")


# Functions of one's own


def test_a_function_takes_the_seed_if_it_wants_one():
    theta = np.arange(6.0).reshape(3, 2)
    seeds = episode_seeds(4, 3)
    expected = theta.sum(axis=1)
    kinds = {
        "both": lambda theta, seed: theta.sum() + float(seed % 7),
        "other name": lambda theta, s: theta.sum() + float(s % 7),
        "by keyword": lambda theta, *, seed: theta.sum() + float(seed % 7),
    }
    for kind, function in kinds.items():
        given = task_from_function(function, 2).evaluate(theta, seed=4)
        assert np.array_equal(given, expected + seeds % 7), kind
    for function in (lambda theta: theta.sum(), lambda theta, scale=1.0: scale * theta.sum(), np.sum):
        assert np.array_equal(task_from_function(function, 2).evaluate(theta, seed=4), expected)


def test_a_function_gets_a_copy_and_must_return_a_number():
    def spoils(theta):
        theta[:] = 0
        return np.float32(1)

    theta = np.ones((2, 3))
    returns = task_from_function(spoils, 3).evaluate(theta)
    assert returns.dtype == np.float64
    assert (theta == 1).all()
    for value in (None, "1.5", [1.0, 2.0], 1j):
        with pytest.raises(ValueError, match="function must return a number, but it returned"):
            task_from_function(lambda theta, value=value: value, 3).evaluate(theta)
    with pytest.raises(
        ValueError, match=r"function must take \(theta, seed\) or \(theta\), but it takes \(\)"
    ):
        task_from_function(lambda: 1.0, 3)
    with pytest.raises(ValueError, match="function must take"):
        task_from_function(3, 3)
    with pytest.raises(ValueError, match="initial_std must be a number above 0"):
        task_from_function(spoils, 3, initial_std=0)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        ("own_function", "parameters [3, 11] seem to matter"),
        ("own_task", "Learned gains"),
        ("own_environment", "pendulums have been upright"),
    ],
)
def test_the_examples_run_without_a_warning(example, words):
    path = Path(__file__).parent.parent / "examples" / f"{example}.py"
    done = subprocess.run([sys.executable, "-W", "error", path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert words in done.stdout
    assert len(path.read_text().splitlines()) < 70
