"""Worker processes: the same bits, and an end to them however things go."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import klimb
from klimb._processes import ONE_THREAD
from klimb.evaluation import Workers
from klimb.tasks import episode_seeds, make_task, task_from_function


class UnpicklableError(Exception):
    def __init__(self, first, second):
        super().__init__(first)
        self.second = second


@dataclass(frozen=True)
class Told:
    """A task whose first parameter says what is to happen."""

    threads: int = 1

    n_parameters = 2
    optimum = None
    initial_std = 1.0

    def evaluate(self, theta, seed=0):
        seeds = episode_seeds(seed, len(theta))
        for what in theta[:, 0]:
            if what == 1:
                raise KeyError("as told")
            if what == 2:
                raise UnpicklableError("no way back", 2)
            if what == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            if what == 4:
                os._exit(7)
        process = {5: float(os.getpid()), 6: float(self.threads), 7: float(_settings() == {"1"})}
        return np.array(
            [process.get(row[0], row[1] + float(s % 97)) for row, s in zip(theta, seeds, strict=True)]
        )


def _settings():
    return {os.environ.get(name) for name in ONE_THREAD}


def one(what):
    return np.array([[what, 0.0]])


@pytest.fixture(scope="module")
def told():
    with Workers(Told(), 2) as workers:
        yield workers


def alive(pids):
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def wait_until_gone(pids, seconds=10.0):
    until = time.monotonic() + seconds
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pids)


def pids_of(workers):
    return [worker.process.pid for worker in workers._workers]


# The same returns


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("gymnasium:Pendulum-v1", {"normalise": True}, 13),
        ("air-hockey", {"puck": "random"}, 9),
    ],
)
def test_returns_are_those_of_one_process_to_the_last_bit(name, options, count):
    task = make_task(name, **options)
    theta = np.random.default_rng(0).normal(0, task.initial_std, (count, task.n_parameters))
    with Workers(task, 2) as workers:
        assert np.array_equal(workers.evaluate(theta, seed=3), task.evaluate(theta, seed=3))
        for size in (1, 2, 5):
            seeds = episode_seeds(8, size)
            assert np.array_equal(workers.evaluate(theta[:size], seeds), task.evaluate(theta[:size], seeds))
        if name == "air-hockey":
            given = workers.evaluate(theta, 1, return_success=True)
            expected = task.evaluate(theta, 1, return_success=True)
            assert np.array_equal(given[0], expected[0])
            assert np.array_equal(given[1], expected[1])
            assert given[1].dtype == np.bool_
            empty = workers.evaluate(theta[:0], return_success=True)
            assert [len(part) for part in empty] == [0, 0]


def test_workers_are_a_task(told):
    assert (told.n_parameters, told.optimum, told.initial_std) == (2, None, 1.0)
    settings = {"mean": [10.0, 0.0], "std": [1e-6, 1.0], "episodes": 60, "batch": 20, "seed": 0}
    result = klimb.maximize(told, klimb.cem(n_elite=5), **settings)
    expected = klimb.maximize(Told(), klimb.cem(n_elite=5), **settings)
    assert np.array_equal(result.mean, expected.mean)
    assert told.evaluate(np.empty((0, 2))).shape == (0,)


def test_the_work_is_shared_and_each_worker_has_one_thread(told):
    processes = told.evaluate(np.tile(one(5), (400, 1)))
    assert set(processes) <= set(pids_of(told))
    before = dict(os.environ)
    with Workers(Told(threads=8), 1) as workers:
        assert workers.evaluate(one(6)) == [1.0]
        assert workers.evaluate(one(7)) == [1.0]
    assert dict(os.environ) == before


# When things go wrong


def test_an_exception_comes_through_and_the_workers_go_on(told):
    theta = np.array([[10.0, k] for k in range(30)])
    bad = theta.copy()
    bad[[3, 20], 0] = 1
    for _ in range(3):
        with pytest.raises(KeyError, match="as told") as caught:
            told.evaluate(bad, 0)
        assert "in a worker process" in caught.value.__notes__[0]
        assert np.array_equal(told.evaluate(theta, 0), Told().evaluate(theta, 0))  # no stale replies
    with pytest.raises(RuntimeError, match="UnpicklableError: no way back"):
        told.evaluate(one(2))


def test_wrong_input_is_refused_as_by_the_task(told):
    with pytest.raises(ValueError, match=r"theta must hold .* shape \(N, 2\), but its shape is \(3, 5\)"):
        told.evaluate(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="seed must be one number or 3 of them"):
        told.evaluate(np.zeros((3, 2)), [1, 2])
    with pytest.raises(ValueError, match=r"Told\.evaluate has no return_success"):
        told.evaluate(np.zeros((3, 2)), return_success=True)
    with pytest.raises(ValueError, match="count must be a whole number of at least 1, but 0 came"):
        Workers(Told(), 0)


@pytest.mark.parametrize(
    ("what", "cause"), [(3, "by SIGKILL, .*lack of memory.*fewer workers"), (4, "exit code 7")]
)
def test_a_worker_that_dies_is_reported_and_the_others_end(what, cause):
    with Workers(Told(), 2) as workers:
        pids = pids_of(workers)
        with pytest.raises(RuntimeError, match=f"a worker process ended .*{cause}.*evaluate the same batch"):
            workers.evaluate(np.concatenate([np.full((6, 2), 10.0), one(what)]))
        assert wait_until_gone(pids)
        with pytest.raises(RuntimeError, match="these workers are closed"):
            workers.evaluate(one(10))


def test_what_cannot_be_pickled_is_named():
    task = task_from_function(lambda theta: 0.0, 3)
    with pytest.raises(
        ValueError, match=r"task must be picklable .* OwnTask is not: .*lambda.*top level of a module"
    ):
        Workers(task, 1)


def test_a_class_that_workers_cannot_import_is_named(monkeypatch):
    class Hidden(Told):
        pass

    monkeypatch.setattr(sys.modules[__name__], "Hidden", Hidden, raising=False)
    Hidden.__qualname__ = "Hidden"
    pickle.dumps(Hidden())  # here it works, as the module has been given the name
    with pytest.raises(ValueError, match=r"cannot be unpickled in a worker process: .*Hidden.*into a module"):
        Workers(Hidden(), 1)


def test_the_processes_end_with_the_with_statement():
    def leave_by_an_exception():
        with workers:
            pids.extend(pids_of(workers))
            assert alive(pids) == pids
            raise ZeroDivisionError

    workers, pids = Workers(Told(), 1), []
    with pytest.raises(ZeroDivisionError):
        leave_by_an_exception()
    assert wait_until_gone(pids)
    workers.close()  # again, which does no harm


SLOW_SCRIPT = """
import time
import numpy as np
from klimb.evaluation import Workers
from klimb.tasks import task_from_function

def slow(theta):
    time.sleep(60)
    return 0.0

def main():
    with Workers(task_from_function(slow, 1), 2) as workers:
        print(*(worker.process.pid for worker in workers._workers), flush=True)
        workers.evaluate(np.zeros((4, 1)))

if {guard}:
    main()
"""


@pytest.mark.parametrize("kill", ["ctrl-c", "parent dies"])
def test_no_process_is_left_behind(tmp_path, kill):
    script = tmp_path / "slow_script.py"
    script.write_text(SLOW_SCRIPT.format(guard="__name__ == '__main__'"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script], start_new_session=True, **pipes) as parent:
        try:
            pids = [int(word) for word in parent.stdout.readline().split()]
            assert len(pids) == 2
            time.sleep(0.3)
            # as a terminal does: to all of them
            os.killpg(parent.pid, signal.SIGINT) if kill == "ctrl-c" else parent.kill()
            _, errors = parent.communicate(timeout=20)
        finally:
            parent.kill()
    assert wait_until_gone(pids)
    if kill == "ctrl-c":
        assert errors.rstrip().endswith("KeyboardInterrupt")
        assert errors.count("Traceback") == 1  # the workers keep quiet


def test_a_script_without_a_guard_is_told_what_to_do(tmp_path):
    script = tmp_path / "slow_script.py"
    script.write_text(SLOW_SCRIPT.format(guard="True"))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "put the code that makes Workers under `if __name__ == '__main__':`" in done.stderr
