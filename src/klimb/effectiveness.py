"""How much each parameter matters, measured from samples and their returns.

An effectiveness measure is a function ``(local_samples, returns, rng) -> values`` with one value per
parameter; larger matters more. Every measure here is a plain function of that shape, deterministic but
for `random_effectiveness`, and leaves its inputs as they are. Validation is the caller's.

Symbols
-------
N, n      samples and parameters; ``samples`` is (N, n), ``returns`` is (N,)
x, J      one parameter's N values and the N returns
k         rank of the neighbour that sets the scale of a nearest-neighbour estimate
psi       the digamma function

Constant. A parameter (or the returns) whose values differ from the first by no more than 4 units of relative
rounding counts as constant: every measure but the random one is then exactly 0, never NaN.

Ties. scikit-learn breaks ties with random noise; klimb adds none and counts each point's neighbours in an
open ball (see `klimb._neighbours.kraskov`). Without ties the values are the same; for discrete returns the
estimate becomes that of Ross (2014), and for samples and returns that repeat often the plug-in estimate of
discrete data with psi for the logarithm.

References
----------
Kraskov, Stögbauer, Grassberger (2004), Estimating mutual information, Phys. Rev. E 69, 066138.
Ross (2014), Mutual information between discrete and continuous data sets, PLoS ONE 9(2), e87357.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import psi, xlogy

from klimb._validation import FloatArray, IntArray, lookup

Effectiveness = Callable[[FloatArray, FloatArray, np.random.Generator], FloatArray]

NEIGHBOURS = 4  # k of both nearest-neighbour estimates, as in the paper
BINS = 4  # per axis of the histogram estimate, as in the paper

_CHUNK = 2**16  # values worked on at a time: a chunk and its temporaries stay in the processor's cache
_ROUNDING = 4 * float(np.finfo(np.float64).eps)  # a relative spread up to here is no spread


def pearson(samples: FloatArray, returns: FloatArray, rng: np.random.Generator | None = None) -> FloatArray:
    """Absolute Pearson correlation |r(x, J)| of each parameter with the returns.

    Invariant to shift and scale of both, whatever their size (magnitudes below 1e307). Memory beyond the
    result is one chunk of columns.

    Parameters
    ----------
    samples : (N, n) array
    returns : (N,) array
    rng : ignored

    Returns
    -------
    (n,) array
        In [0, 1]; 0 for a constant parameter, and everywhere if the returns are constant.
    """
    result = np.empty(samples.shape[1])
    J, J_squares = _centred(returns[:, None])
    J = J[:, 0] / np.sqrt(J_squares)
    for columns in _chunks(samples):
        x, x_squares = _centred(samples[:, columns])
        result[columns] = J @ x / np.sqrt(x_squares)  # r = sum J x / sqrt(sum J^2 sum x^2)
    np.abs(result, out=result)
    return np.minimum(result, 1.0, out=result)


def mutual_information(
    samples: FloatArray, returns: FloatArray, rng: np.random.Generator | None = None
) -> FloatArray:
    """Mutual information of each parameter with the returns, from k = 4 nearest neighbours.

    The values of scikit-learn's ``mutual_info_regression(samples, returns, n_neighbors=4)``: Kraskov's first
    estimator on values of standard deviation 1, clipped at 0. Unlike there, no noise is added, so equal
    inputs give equal values; the module's docstring says what happens to ties.

    Parameters
    ----------
    samples : (N, n) array
        With fewer than 5 samples, k = N - 1, and the values say little.
    returns : (N,) array
    rng : ignored

    Returns
    -------
    (n,) array
        In nats, at least 0; 0 for a constant parameter, and everywhere if the returns are constant.
    """
    result = _kraskov(samples, returns, standardise=True)
    return np.maximum(result, 0.0, out=result)


def mutual_information_ksg(
    samples: FloatArray, returns: FloatArray, rng: np.random.Generator | None = None
) -> FloatArray:
    """Kraskov's first estimator as published: no standardisation, no clipping, k = 4 nearest neighbours.

    Not invariant to scale: the ball around a point is square in the units given, so returns much larger than
    the parameters hide what the parameters do.

    Parameters
    ----------
    samples : (N, n) array
        With fewer than 5 samples, k = N - 1, and the values say little.
    returns : (N,) array
    rng : ignored

    Returns
    -------
    (n,) array
        In nats. Below 0 where the estimate of a small mutual information came out so: kept, because clipping
        would bias the average over runs; only the order matters for a selection. A constant parameter has 0.
    """
    return _kraskov(samples, returns, standardise=False)


def mutual_information_histogram(
    samples: FloatArray, returns: FloatArray, rng: np.random.Generator | None = None
) -> FloatArray:
    """Mutual information of each parameter with the returns from a histogram of 4 x 4 bins.

    The plug-in estimate; the bins are of equal width from the smallest to the largest value, as those of
    ``numpy.histogram2d``.

    Parameters
    ----------
    samples : (N, n) array
    returns : (N,) array
    rng : ignored

    Returns
    -------
    (n,) array
        In nats, at least 0; 0 for a constant parameter, and everywhere if the returns are constant.
    """
    N, n = samples.shape
    result = np.zeros(n)
    J_bins, J_constant = _bins(returns[:, None])
    if J_constant[0]:
        return result
    count_log_count = xlogy(np.arange(N + 1), np.arange(N + 1))
    J_sum = count_log_count[np.bincount(J_bins[:, 0])].sum()
    for columns in _chunks(samples):
        x_bins, constant = _bins(samples[:, columns])
        width = constant.size
        cells = (np.arange(width) * BINS + x_bins) * BINS + J_bins
        counts = np.bincount(cells.ravel(), minlength=width * BINS * BINS).reshape(width, BINS * BINS)
        x_counts = counts.reshape(width, BINS, BINS).sum(axis=2)
        # I = log N + (sum c_xJ log c_xJ - sum c_x log c_x - sum c_J log c_J) / N
        sums = count_log_count[counts].sum(axis=1) - count_log_count[x_counts].sum(axis=1) - J_sum
        result[columns] = np.where(constant, 0.0, np.log(N) + sums / N)
    return np.maximum(result, 0.0, out=result)


def random_effectiveness(samples: FloatArray, returns: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Uniform draws from `rng`, one per parameter: the baseline that knows nothing."""
    return rng.random(samples.shape[1:])


MEASURES: dict[str, Effectiveness] = {
    "pearson": pearson,
    "mutual-information": mutual_information,
    "mutual-information-ksg": mutual_information_ksg,
    "mutual-information-histogram": mutual_information_histogram,
    "random": random_effectiveness,
}


def resolve(effectiveness: str | Effectiveness) -> Effectiveness:
    """Return the measure of that name; a callable is returned as it is."""
    if isinstance(effectiveness, str):
        return lookup("effectiveness", effectiveness, MEASURES)
    if not callable(effectiveness):
        raise ValueError(
            f"effectiveness must be one of {', '.join(map(repr, MEASURES))} or a callable "
            f"(local_samples, returns, rng) -> (n,), but {effectiveness!r} came."
        )
    return effectiveness


def _chunks(samples: FloatArray) -> Iterator[slice]:
    """Slices of columns that hold about `_CHUNK` values each."""
    N, n = samples.shape
    width = max(1, _CHUNK // N)
    for start in range(0, n, width):
        yield slice(start, start + width)


def _centred(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Columns with mean 0 and a size near 1, and their sums of squares; constant ones become 0.

    Measured from its first value, a constant column is exactly 0 and an offset costs no digits; in units of
    its largest distance from there, no square overflows or underflows.
    """
    first = columns[0]
    x = columns - first
    # Bare ufunc reductions: for a small batch the wrappers around them take longer than the arithmetic.
    spread = np.maximum.reduce(np.abs(x))
    spread[spread <= _ROUNDING * np.abs(first)] = np.inf
    x /= spread
    x -= np.add.reduce(x) / len(x)
    # A column that varies holds 0 and 1 (or -1) before it is centred, so its sum of squares is at least 1/2.
    return x, np.maximum(np.einsum("ij,ij->j", x, x), 0.25)


def _kraskov(samples: FloatArray, returns: FloatArray, *, standardise: bool) -> FloatArray:
    """Kraskov's estimate for every parameter, not clipped."""
    from klimb._neighbours import kraskov  # numba: not at import time

    N = returns.size
    table = np.zeros(N + 1)
    table[1:] = psi(np.arange(1.0, N + 1.0))
    result: FloatArray = kraskov(samples, returns, min(NEIGHBOURS, N - 1), table, _ROUNDING, standardise)
    return result


def _bins(columns: FloatArray) -> tuple[IntArray, NDArray[np.bool_]]:
    """Bin number of every value, and which columns are constant."""
    first, low, high = columns[0], columns.min(axis=0), columns.max(axis=0)
    edges = np.linspace(low, high, BINS + 1)
    bins = np.zeros(columns.shape, np.int64)
    for edge in edges[1:-1]:  # a value on an inner edge belongs to the bin above it
        bins += columns >= edge
    return bins, np.maximum(high - first, first - low) <= _ROUNDING * np.abs(first)
