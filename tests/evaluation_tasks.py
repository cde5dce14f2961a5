"""Tasks for the tests of workers; here, because a worker imports the module that its task is in."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from klimb._processes import ONE_THREAD
from klimb.tasks import episode_seeds


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
            if what == 8:
                time.sleep(60)
        process = {5: float(os.getpid()), 6: float(self.threads), 7: float(_settings() == {"1"})}
        return np.array(
            [process.get(row[0], row[1] + float(s % 97)) for row, s in zip(theta, seeds, strict=True)]
        )


@dataclass(frozen=True)
class Mortal:
    """A task that kills its worker the first times, or for a negative parameter."""

    mark: str
    deaths: int

    n_parameters = 1
    optimum = None
    initial_std = 1.0

    def evaluate(self, theta, seed=0, *, return_success=False):
        if self.deaths and len(Path(self.mark).read_text()) < self.deaths:
            with open(self.mark, "a") as file:
                file.write("x")
            os._exit(1)
        if (theta == -1).any():
            os._exit(1)
        returns = theta if (theta == -2).any() else theta[:, 0]
        return (returns, returns > 0) if return_success else returns


def naps(theta, rewards=None):
    time.sleep(theta[0])
    return theta[0]


def _settings():
    return {os.environ.get(name) for name in ONE_THREAD}
