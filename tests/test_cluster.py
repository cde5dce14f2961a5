"""A real Ray cluster of two nodes on loopback: the same bits, also when one dies in the middle of a batch."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from evaluation_tasks import Told, naps
from loopback import two_nodes
from typer.testing import CliRunner

import klimb
from klimb.cli import app
from klimb.evaluation import Workers, WorkerWarning, cluster
from klimb.tasks import make_task, task_from_function

# Ray's own, which are not ours to mend
pytestmark = pytest.mark.filterwarnings(
    "ignore:::ray", "ignore::ResourceWarning", "ignore:.*Ray:FutureWarning"
)


@pytest.fixture(scope="module")
def nodes():
    with two_nodes(Path(__file__).parent) as cluster:  # the tests' tasks are importable on all nodes
        yield cluster


def children(parent):
    """Processes whose parent is `parent`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def test_a_cluster_gives_the_same_returns_and_errors(nodes):
    task = make_task("lqr", start="random")
    theta = np.random.default_rng(0).normal(0, 0.3, (40, 100))
    with Workers(task, cluster=nodes.address) as workers:
        assert workers.count == 2
        assert np.array_equal(workers.evaluate(theta, 7), task.evaluate(theta, 7))
    with Workers(Told(), cluster=nodes.address) as workers:
        assert len(set(workers.evaluate(np.full((40, 2), 5.0)))) >= 1
        with pytest.raises(KeyError, match="as told") as caught:
            workers.evaluate([[10.0, 0.0], [1.0, 0.0]])
        assert "in a worker process" in caught.value.__notes__[0]
        assert np.array_equal(workers.evaluate(np.full((9, 2), 10.0)), Told().evaluate(np.full((9, 2), 10.0)))


def test_a_run_on_a_cluster_is_the_run_without(nodes):
    command = ["run", "lqr", "--episodes", "100", "--quiet", "--json"]
    alone = CliRunner().invoke(app, command)
    there = CliRunner().invoke(app, [*command, "--cluster", nodes.client])
    assert there.exit_code == 0, there.output
    assert there.stdout.partition('"seconds"')[0] == alone.stdout.partition('"seconds"')[0]


def test_a_study_is_resumed_on_a_cluster_as_without(nodes, tmp_path):
    here, there = str(tmp_path / "here.db"), str(tmp_path / "there.db")
    found = []
    for file, elsewhere in ((here, []), (there, ["--cluster", nodes.client, "--timeout", "60"])):
        begun = CliRunner().invoke(app, ["run", "lqr", "--episodes", "40", "--study", file, "--quiet"])
        assert begun.exit_code == 0, begun.output
        done = CliRunner().invoke(
            app, ["study", "resume", file, "--episodes", "80", "--json", "-q", *elsewhere]
        )
        assert done.exit_code == 0, done.output
        with klimb.Study(file) as study:
            found.append((study.status().done, study.optimizer.mean.tolist()))
    assert found[0] == found[1]
    assert found[0][0] == 80


def test_a_hanging_episode_loses_its_actor_and_fails_alone(nodes):
    theta = np.array([[10.0, k] for k in range(6)])
    expected = Told().evaluate(theta, 1)
    theta[2, 0], expected[2] = 8, np.nan
    with Workers(Told(), cluster=nodes.address, timeout=1.0, retries=0) as workers:
        with pytest.warns(WorkerWarning) as caught:
            assert np.array_equal(workers.evaluate(theta, 1), expected, equal_nan=True)
        assert "the limit of 1 s was exceeded: the episode with seed" in str(caught[-1].message)


def test_different_versions_are_named_within_seconds(nodes, monkeypatch):
    monkeypatch.setattr(klimb, "__version__", "9.9.9")
    with pytest.raises(ValueError, match=r"a worker has klimb \S+, but klimb 9\.9\.9 sent the task"):
        Workers(Told(), cluster=nodes.address)


def test_a_node_that_dies_in_the_middle_of_a_batch_changes_nothing(nodes):
    task = task_from_function(naps, 1)
    theta = np.linspace(0.03, 0.06, 60)[:, None]

    def kill_node():
        time.sleep(0.5)
        for pid in [nodes.raylet, *children(nodes.raylet)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    with Workers(task, cluster=nodes.address) as workers:
        assert np.array_equal(workers.evaluate(theta[:20]), theta[:20, 0])  # both nodes at work
        assert workers._open.transport.room == 2
        killer = threading.Thread(target=kill_node)
        killer.start()
        with pytest.warns(WorkerWarning, match="a worker of the cluster died"):
            assert np.array_equal(workers.evaluate(theta, 3), task.evaluate(theta, 3))
        killer.join()
        assert np.array_equal(workers.evaluate(theta[:4]), theta[:4, 0])  # the other node goes on


# Without a cluster


def test_what_cannot_travel_to_a_cluster_is_named():
    lock = threading.Lock()
    with pytest.raises(ValueError, match=r"task\.function, a function, cannot travel: .*lock"):
        Workers(task_from_function(lambda theta: float(lock.locked()), 1), cluster="auto")


def test_a_cluster_that_cannot_be_reached_is_an_error_within_seconds(monkeypatch):
    with pytest.raises(
        RuntimeError, match=r"no cluster can be reached at ray://127\.0\.0\.2:1: .*10001 for ray"
    ):
        Workers(Told(), cluster="ray://127.0.0.2:1")
    with pytest.raises(ValueError, match="cluster must be"):
        Workers(Told(), cluster="head")
    monkeypatch.setattr(cluster, "CONNECTED", 0.1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RuntimeError, match=r"did not answer as a Ray cluster within 0\.1 s"):
            Workers(Told(), cluster=f"127.0.0.1:{silent.getsockname()[1]}")


def test_a_connection_that_ray_refuses_is_an_error_that_names_the_ports(monkeypatch):
    import ray

    def refuse(*arguments, **settings):
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(RuntimeError, match=r"no connection to the cluster auto: ray client .*10001 for ray"):
        Workers(Told(), cluster="auto")


def test_a_missing_extra_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    done = CliRunner().invoke(app, ["run", "lqr", "--cluster", "auto"])
    assert done.exit_code == 2
    assert "a cluster needs Ray: pip install 'klimb[ray]'" in done.stderr


@pytest.mark.parametrize(("failures", "asked"), [(1, 2), (2, 3), (3, 3)])
def test_a_head_that_is_busy_is_asked_again(monkeypatch, failures, asked):
    said = ["Initialization failure from server: Starting Ray client server failed."] * failures

    def init(address, **settings):
        calls.append(address)
        if said:
            raise ConnectionAbortedError(said.pop())

    calls = []
    monkeypatch.setattr("ray.init", init)
    if failures < 3:
        cluster._connect("ray://head:10001")
    else:
        with pytest.raises(RuntimeError, match="no connection to the cluster ray://head:10001: Init"):
            cluster._connect("ray://head:10001")
    assert calls == ["ray://head:10001"] * asked


def test_what_is_not_a_busy_head_is_not_asked_again(monkeypatch):
    calls = []

    def init(address, **settings):
        calls.append(address)
        raise ConnectionError("ray client connection timeout")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(RuntimeError, match="connection timeout"):
        cluster._connect("ray://head:10001")
    assert len(calls) == 1
