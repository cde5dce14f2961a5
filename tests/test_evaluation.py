"""Episodes elsewhere: the same bits, faults that cost one episode at most, and no process left behind."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Lock
from types import SimpleNamespace

import numpy as np
import pytest
from evaluation_tasks import Mortal, Told, naps
from hypothesis import given
from hypothesis import strategies as st

import klimb
from klimb.cli import _plain_warnings
from klimb.evaluation import Workers, WorkerWarning
from klimb.evaluation.luggage import culprit
from klimb.evaluation.scheduler import Scheduler, Span
from klimb.evaluation.work import Piece
from klimb.tasks import episode_seeds, make_task, task_from_function


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
    return [worker.process.pid for worker in workers._open.transport.hands]


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


def test_what_killed_its_worker_fails_alone_and_a_new_worker_goes_on():
    theta = np.array([[10.0, k] for k in range(24)])
    expected = Told().evaluate(theta, 5)
    theta[[3, 20], 0] = 3, 4
    expected[[3, 20]] = np.nan
    with Workers(Told(), 2) as workers:
        before = pids_of(workers)
        with pytest.warns(RuntimeWarning) as caught:
            assert np.array_equal(workers.evaluate(theta, 5), expected, equal_nan=True)
        texts = [str(warning.message) for warning in caught]
        seeds = episode_seeds(5, 24)
        # each culprit dies twice: with the piece it was part of, and alone
        assert sum("will be run again" in text for text in texts) == 2
        for place, cause in ((3, r"was ended by SIGKILL \(out of memory"), (20, "ended with exit code 7")):
            (failed,) = [text for text in texts if f"seed {seeds[place]} failed" in text]
            assert re.search(f"a worker process {cause}.*, 2 times: .*its return is NaN", failed)
        assert wait_until_gone(before[:1]) or wait_until_gone(before[1:])
        workers._open.transport.wait_until_ready()
        assert len(alive(pids_of(workers))) == 2
        theta[:, 0] = 10
        assert np.array_equal(workers.evaluate(theta, 5), Told().evaluate(theta, 5))
    with pytest.raises(RuntimeError, match="these workers are closed"):
        workers.evaluate(one(10))


def test_an_episode_is_run_again_as_often_as_the_user_says(tmp_path):
    (tmp_path / "mark").write_text("")
    task = Mortal(str(tmp_path / "mark"), deaths=2)
    for retries, expected in ((2, 1.5), (1, np.nan)):
        (tmp_path / "mark").write_text("")
        with Workers(task, 1, retries=retries) as workers, pytest.warns(RuntimeWarning):
            assert np.array_equal(workers.evaluate([[1.5]]), [expected], equal_nan=True)
        assert (tmp_path / "mark").read_text() == "xx"


def test_an_innocent_episode_never_fails_even_without_retries():
    theta = np.array([[10.0, k] for k in range(12)])
    theta[7, 0] = 3
    with Workers(Told(), 2, retries=0) as workers, pytest.warns(RuntimeWarning):
        returns = workers.evaluate(theta)
    assert np.flatnonzero(np.isnan(returns)).tolist() == [7]


def test_a_failed_episode_is_no_success():
    task = Mortal("", deaths=0)
    with Workers(task, 1, retries=0) as workers, pytest.warns(RuntimeWarning):
        returns, success = workers.evaluate([[1.0], [-1.0], [2.0]], return_success=True)
    assert np.array_equal(returns, [1.0, np.nan, 2.0], equal_nan=True)
    assert success.tolist() == [True, False, True]


def test_a_hanging_episode_is_ended_and_fails_alone():
    theta = np.array([[10.0, k] for k in range(8)])
    expected = Told().evaluate(theta, 1)
    theta[5, 0] = 8
    expected[5] = np.nan
    with Workers(Told(), 2, timeout=1.0, retries=0) as workers:
        before = pids_of(workers)
        with pytest.warns(RuntimeWarning) as caught:
            assert np.array_equal(workers.evaluate(theta, 1), expected, equal_nan=True)
        assert "the limit of 1 s was exceeded: the episode with seed" in str(caught[-1].message)
        assert any(wait_until_gone([pid], 0.1) for pid in before)


def test_a_piece_beyond_the_limit_costs_no_episode_that_keeps_it():
    # as one piece, six of them exceed the limit; each alone keeps it
    with Workers(task_from_function(naps, 1), 1, timeout=0.8, retries=0) as workers:
        workers._open._pace = 1e-3
        with pytest.warns(
            RuntimeWarning, match="the limit of 0.8 s was exceeded: 6 episodes will be run again"
        ):
            assert np.array_equal(workers.evaluate(np.full((12, 1), 0.2)), np.full(12, 0.2))


def test_the_command_line_says_what_happens_to_workers_every_time(capsys):
    with _plain_warnings():
        for _ in range(2):
            warnings.warn("a worker process died", WorkerWarning, stacklevel=1)
        with pytest.raises(RuntimeWarning, match="another"):  # as the tests' filter has it
            warnings.warn("another", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "klimb: a worker process died\n" * 2


# Pieces


@given(st.integers(1, 3000), st.integers(1, 64), st.floats(1e-8, 10.0), st.none() | st.floats(0.1, 1e3))
def test_pieces_are_worth_a_message_but_leave_no_worker_idle(left, count, pace, timeout):
    transport = SimpleNamespace(count=count, cost=0.0002)
    scheduler = Scheduler(transport, retries=1, timeout=timeout)
    scheduler._pace = pace
    size = scheduler._size(left)
    assert 1 <= size <= left
    if size > 1:
        assert timeout is None or size * pace <= timeout / 2
        # no longer than all others need for what is left, or else hardly longer than its message
        assert size <= left / count + 1 or size * pace <= 0.004
        assert size * pace <= 0.06
    if timeout is None and size < left:
        assert (size + 1) * pace >= 0.002


def test_what_takes_no_time_travels_at_once_and_what_takes_long_alone():
    sent = []
    transport = SimpleNamespace(
        count=2, cost=0.0002, room=1, shared_fate=False, submit=lambda n, piece: sent.append(len(piece.theta))
    )
    for pace, expected in ((1e-7, 100), (1.0, 1), (0.01, 5)):
        scheduler = Scheduler(transport, retries=1, timeout=None)
        scheduler._pace = pace
        transport.room = 1
        scheduler._waiting.append(Span(0, Piece(np.zeros((100, 1)), np.zeros(100, dtype=np.uint64), {})))
        transport.submit = lambda n, piece: (sent.append(len(piece.theta)), setattr(transport, "room", 0))
        scheduler._feed()
        assert sent.pop() == expected


# Submit and collect


def test_results_are_collected_as_they_come():
    with Workers(task_from_function(naps, 1), 2) as workers:
        workers.evaluate(np.zeros((4, 1)))
        slow = workers.submit([[0.7]])
        quick = workers.submit(np.zeros((5, 1)), seed=3)
        with pytest.raises(RuntimeError, match="collect the episodes that were submitted"):
            workers.evaluate([[0.0]])
        first = workers.collect(3)
        assert set(first.tickets) <= set(quick)
        assert len(first.tickets) >= 3
        rest = workers.collect(100)
        assert set(first.tickets) | set(rest.tickets) == {*quick, *slow}
        assert rest.returns[rest.tickets == slow[0]] == [0.7]
        assert len(workers.collect(1).tickets) == 0


# Executors


def test_an_executor_gives_the_same_returns():
    theta = np.random.default_rng(0).normal(10, 1, (40, 2))
    for executor in (ThreadPoolExecutor(3), ProcessPoolExecutor(2, mp_context=get_context("spawn"))):
        with executor, Workers(Told(), executor=executor) as workers:
            assert workers.count in (2, 3)
            assert np.array_equal(workers.evaluate(theta, 4), Told().evaluate(theta, 4))
            with pytest.raises(KeyError, match="as told"):
                workers.evaluate(np.concatenate([theta, one(1)]))
            assert np.array_equal(workers.evaluate(theta, 4), Told().evaluate(theta, 4))


def make_pool():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


def test_a_broken_executor_is_made_anew_and_only_the_culprit_fails():
    theta = np.array([[10.0, k] for k in range(10)])
    expected = Told().evaluate(theta, 2)
    theta[4, 0], expected[4] = 3, np.nan
    with Workers(Told(), executor=make_pool) as workers, pytest.warns(RuntimeWarning) as caught:
        assert np.array_equal(workers.evaluate(theta, 2), expected, equal_nan=True)
    assert str(caught[0].message).startswith("a worker of the executor died: ")
    with make_pool() as pool, Workers(Told(), executor=pool) as workers:  # noqa: SIM117
        with pytest.raises(RuntimeError, match="pass a function that makes one"):
            workers.evaluate(theta)


class Breaking(ThreadPoolExecutor):
    """An executor that breaks while it is handed its second piece, as one of processes may."""

    submitted = 0

    def submit(self, *arguments):
        self.submitted += 1
        if self.submitted == 3:  # the first is a trial
            raise OSError("handle is closed")
        return super().submit(*arguments)


def test_an_executor_that_breaks_while_it_is_fed_is_made_anew_as_well():
    theta = np.random.default_rng(0).normal(10, 1, (40, 2))
    made = []

    def make():
        made.append(Breaking(2) if not made else ThreadPoolExecutor(2))
        return made[-1]

    with Workers(Told(), executor=make) as workers, pytest.warns(RuntimeWarning, match="will be run again"):
        assert np.array_equal(workers.evaluate(theta, 4), Told().evaluate(theta, 4))
    assert len(made) == 2
    with Breaking(2) as executor, Workers(Told(), executor=executor) as workers:  # noqa: SIM117
        with pytest.raises(RuntimeError, match="handle is closed"):
            workers.evaluate(theta, 4)


def test_an_executor_whose_workers_all_hang_is_an_error():
    task = task_from_function(naps, 1)
    with (
        ThreadPoolExecutor(1) as executor,
        Workers(task, executor=executor, timeout=0.2, retries=0) as workers,
        pytest.warns(RuntimeWarning),
        pytest.raises(RuntimeError, match=r"all 1 workers .* let klimb"),
    ):
        workers.evaluate([[2.0], [0.0]])


def test_wrong_ways_are_refused():
    with pytest.raises(ValueError, match="executor must be a concurrent"):
        Workers(Told(), executor=lambda: 3)
    with pytest.raises(ValueError, match="two ways of which one"):
        Workers(Told(), executor=make_pool, cluster="auto")
    with pytest.raises(ValueError, match="retries must be a whole number of at least 0"):
        Workers(Told(), 1, retries=-1)
    with pytest.raises(ValueError, match="timeout must be"):
        Workers(Told(), 1, timeout=0.0)


# What cannot travel


def test_what_cannot_be_pickled_is_named():
    task = task_from_function(lambda theta: 0.0, 3)
    with pytest.raises(
        ValueError,
        match=r"picklable .* task\.function, a function, cannot travel: .*lambda.*top level of a mod",
    ):
        Workers(task, 1)
    rewards = {"near": [1.0, partial(max, default=Lock())]}
    with pytest.raises(
        ValueError,
        match=r"task\.function\.keywords\['rewards'\]\['near'\]\[1\]\.keywords\['default'\], a lock, can",
    ):
        Workers(task_from_function(partial(naps, rewards=rewards), 3), 1)
    assert culprit(Told().evaluate.__self__.__dict__ | {"a": Lock()})[0] == "task['a']"


def test_another_version_of_klimb_is_named(monkeypatch):
    monkeypatch.setattr(klimb, "__version__", "9.9.9")
    with pytest.raises(
        ValueError, match=r"a worker has klimb \S+, but klimb 9\.9\.9 sent .*pip install klimb==9\.9\.9"
    ):
        Workers(Told(), 1)


def test_a_wrong_number_of_returns_is_an_error():
    text = r"Mortal\.evaluate must give one return per episode, shape \(1,\)"
    with Workers(Mortal("", deaths=0), 1) as workers, pytest.raises(ValueError, match=text):
        workers.evaluate([[-2.0]])


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
        print(*(worker.process.pid for worker in workers._open.transport.hands), flush=True)
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
    assert "Put the code that makes Workers under `if __name__ == '__main__':`" in done.stderr
