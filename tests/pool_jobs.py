"""Jobs for the test of worker processes; here, because a worker imports the module that its job is in."""

import os
import signal
from pathlib import Path


def dies_once(directory, number):
    """A job whose worker dies the first time, or every time, or that raises."""
    mark = Path(directory) / str(number)
    if number == 1 and not mark.exists():
        mark.touch()
        os._exit(3)
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        raise RuntimeError("no such luck")
    return 10 * number
