"""A Ray cluster as a transport: a crew of actors, one per core, wherever the cluster has it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from klimb._crew import Crew, Ended
from klimb.evaluation.luggage import pack
from klimb.evaluation.work import Piece, Reply, prepare
from klimb.tasks.task import Task

REACHABLE = 5.0  # seconds within which a machine has to answer
CONNECTED = 20.0  # seconds within which what listens there has to answer as Ray does
READY = 20.0  # seconds to wait for all actors, before the first ones begin without the others
# What a head says that could not start a client's process, or not in time, and how often it is asked.
NOT_STARTED, TRIES = "Initialization failure from server", 3
PORTS = "Is `ray start --head` running there, and is this its port (6379 for host:port, 10001 for ray://)?"


def connect(address: str, task: Task, count: int | None, version: str) -> Cluster:
    """Connect to a cluster and put `count` actors there that evaluate the task; None: one per core."""
    try:
        import ray
    except ImportError:
        raise ImportError("a cluster needs Ray: pip install 'klimb[ray]'") from None
    pickled = pack(task, ray.cloudpickle.dumps)
    connected = not ray.is_initialized()
    if connected:
        _check_reachable(address)
        _connect(address)
    cluster = None
    try:
        cores = int(ray.cluster_resources().get("CPU", 0))
        if not cores:
            raise RuntimeError(
                f"the cluster {address} has no core for a worker (ray status shows its nodes)."
            )
        cluster = Cluster(count or cores, pickled, version, remote="://" in address, connected=connected)
        cluster.wait_until_ready(READY)
    except BaseException:
        if cluster is not None:
            cluster.close()
        elif connected:
            ray.shutdown()
        raise
    return cluster


class Cluster(Crew["Actor"]):
    """A crew of actors, and the connection to their cluster."""

    def __init__(self, count: int, pickled: bytes, version: str, *, remote: bool, connected: bool) -> None:
        self._connected = connected
        # with ray://, every message makes a detour over the head of the cluster
        super().__init__(
            count, partial(Actor, pickled, version), _poll, _end, cost=0.005 if remote else 0.002
        )

    def close(self) -> None:
        """End the actors, and the connection if it was made here."""
        import ray

        super().close()
        if self._connected:
            ray.shutdown()
            self._connected = False


class Actor:
    """An actor and what it is to answer: a hand of the crew."""

    def __init__(self, pickled: bytes, version: str) -> None:
        import ray

        settings = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        self._actor: Any = ray.remote(Evaluator).options(**settings).remote()
        self.answer = self._actor.prepare.remote(pickled, version)

    def send(self, message: Piece) -> None:
        """Give it something to do."""
        self.answer = self._actor.evaluate.remote(message)

    def receive(self) -> Any:
        """What it answered; raises Ended if it, or its node, has died."""
        import ray

        try:
            return ray.get(self.answer)
        except ray.exceptions.RayError as error:
            if "No module named 'klimb'" in str(error):
                raise RuntimeError(
                    "klimb is not installed on a node of the cluster: install this version on all of them."
                ) from None
            raise Ended(f"a worker of the cluster died ({type(error).__name__})") from None

    def end(self) -> None:
        """End it at once, whatever it is doing."""
        import ray

        with suppress(ray.exceptions.RayError, ValueError):  # it has ended already
            ray.kill(self._actor)


class Evaluator:
    """What runs on the cluster."""

    def prepare(self, pickled: bytes, version: str) -> Exception | None:
        """Unpack the task; what went wrong."""
        import threadpoolctl

        threadpoolctl.threadpool_limits(1)
        try:
            self._evaluate = prepare(pickled, version)
        except Exception as error:
            return error
        return None

    def evaluate(self, piece: Piece) -> Reply:
        """Evaluate a piece."""
        return self._evaluate(piece)


def _poll(actors: Sequence[Actor], seconds: float | None) -> list[Actor]:
    """Those that have answered, or died."""
    import ray

    by_answer = {actor.answer: actor for actor in actors}
    ready, rest = ray.wait(list(by_answer), num_returns=1, timeout=seconds)
    if ready and rest:
        ready += ray.wait(rest, num_returns=len(rest), timeout=0)[0]
    return [by_answer[answer] for answer in ready]


def _end(actors: Iterable[Actor]) -> None:
    for actor in actors:
        actor.end()


def _check_reachable(address: str) -> None:
    """Raise a RuntimeError if nothing listens at the address, or nothing that speaks as Ray does (gRPC)."""
    if address == "auto":
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not (host and colon and port.isdigit()):
        raise ValueError(
            f'cluster must be "auto", "ray://host:port" or "host:port", such as ray://head:10001, but '
            f"{address!r} came."
        )
    host = host.strip("[]")
    try:
        socket.create_connection((host, int(port)), timeout=REACHABLE).close()
    except (OSError, OverflowError) as error:
        raise RuntimeError(f"no cluster can be reached at {address}: {error}. {PORTS}") from None
    if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
        return
    import grpc

    with grpc.insecure_channel(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECTED)
        except grpc.FutureTimeoutError:
            raise RuntimeError(
                f"what listens at {address} did not answer as a Ray cluster within {CONNECTED:g} s. {PORTS}"
            ) from None


def _connect(address: str) -> None:
    """Connect Ray to a cluster, in the time that Ray gives itself: a busy head is slow to answer.

    With ray:// the head starts a process for every client, and gives up if that takes half a minute.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    for tries_left in reversed(range(TRIES)):
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            return
        except Exception as error:
            ray.shutdown()
            if not (tries_left and NOT_STARTED in str(error)):
                raise RuntimeError(f"no connection to the cluster {address}: {error}. {PORTS}") from None
