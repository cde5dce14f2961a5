"""One BLAS thread for klimb's own matrices.

They are small, and threads that wait for each other make an update tens of times slower on a busy machine.
With a single thread the results are also the same to the bit whatever the number of cores.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager

import numpy  # noqa: F401  (its BLAS must be loaded before threadpoolctl looks for it)
import scipy.linalg  # noqa: F401  (scipy brings one of its own)
from threadpoolctl import ThreadpoolController


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def single_threaded() -> AbstractContextManager[object]:
    """A context in which BLAS uses one thread; what was set before is restored after it."""
    context: AbstractContextManager[object] = _controller().limit(limits=1, user_api="blas")
    return context
