"""One BLAS thread for klimb's own matrices, and memory for them that stays.

They are small, and threads that wait for each other make an update tens of times slower on a busy machine.
With a single thread the results are also the same to the bit whatever the number of cores.

Matrices of some hundred rows come and go in every update. Their memory would go back to the system each time,
to be had anew page by page: a fifth of the time of an update.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext

import numpy as np  # its BLAS must be loaded before threadpoolctl looks for it
import scipy.linalg  # noqa: F401  (scipy brings one of its own)
from threadpoolctl import ThreadpoolController

# glibc keeps blocks up to the size of the largest one freed so far, if that is below 32 MiB.
LARGEST_KEPT = 31 << 20


@functools.cache
def _controller() -> ThreadpoolController:
    np.empty(LARGEST_KEPT, dtype=np.uint8)  # never written to, and freed at once
    return ThreadpoolController()


def single_threaded() -> AbstractContextManager[object]:
    """A context in which BLAS uses one thread; what was set before is restored after it."""
    controller = _controller()
    if all(library.num_threads == 1 for library in controller.lib_controllers if library.user_api == "blas"):
        return nullcontext()  # to set and restore it takes a tenth of a millisecond
    context: AbstractContextManager[object] = controller.limit(limits=1, user_api="blas")
    return context
