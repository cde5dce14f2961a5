"""A Ray cluster of two nodes on this machine, for the benchmark and the tests of clusters."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Ray resolves 127.0.0.1 to the machine's outer address; these it leaves alone
HEAD, SECOND = "127.0.0.2", "127.0.0.3"


@dataclass(frozen=True)
class Nodes:
    """A cluster under way.

    Attributes
    ----------
    address, client
        What to pass as `cluster`: its own, or that of its client server.
    raylet
        Process that keeps the second node; its children are the node's workers.
    """

    address: str
    client: str
    raylet: int


@contextmanager
def two_nodes(path: Path | None = None) -> Iterator[Nodes]:
    """Two nodes with a core each; `path` is where to import from there, besides what is installed."""
    folder = tempfile.mkdtemp(prefix="klimb-ray-", dir="/tmp")  # short: a socket's path has 107 characters
    settings = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0"}
    if path is not None:
        settings["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    with patch.dict(os.environ, settings):
        import ray
        from ray.cluster_utils import Cluster

        port = free_port()
        size: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
        head = {"node_ip_address": HEAD, "include_dashboard": False, "ray_client_server_port": port}
        made = Cluster(initialize_head=True, head_node_args=size | head)
        try:
            second = made.add_node(**size, node_ip_address=SECOND)
            raylet = second.all_processes["raylet"][0].process.pid
            yield Nodes(made.address, f"ray://{HEAD}:{port}", raylet)
        finally:
            ray.shutdown()
            made.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind((HEAD, 0))
        return int(probe.getsockname()[1])
