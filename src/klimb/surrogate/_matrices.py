"""Products and inverses of the kernel's matrices, as fast as BLAS and LAPACK allow."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas, lapack

from klimb._validation import FloatArray
from klimb.gaussian import on_diagonal

# Triangles up to this size are inverted as they are, larger ones by halves.
SMALL_TRIANGLE = 64


def weighted_square(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """rows' diag(weights) rows of (k, n), by products that BLAS knows as symmetric, one for either sign."""
    rows = rows * np.sqrt(np.abs(weights))[:, None]
    more, less = rows[weights > 0], rows[weights < 0]
    square: FloatArray = more.T @ more - less.T @ less
    return square


def solved(K: FloatArray, scatter: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(K + diag)^-1 y, the upper half of that inverse, and the diagonal: a larger one if rounding asks."""
    diagonal = on_diagonal(K)
    own = diagonal.copy()
    while True:
        diagonal[:] = own + scatter
        factor, info = lapack.dpotrf(K.T, lower=True)  # K is symmetric: its transpose lies as LAPACK wants it
        if info == 0:
            break
        scatter = 10 * scatter
    alpha, _ = lapack.dpotrs(factor, y, lower=True)
    invert_triangle(factor)
    inverse, _ = lapack.dlauum(factor, lower=True, overwrite_c=True)
    return alpha, inverse.T, scatter


def invert_triangle(L: FloatArray) -> None:
    """Put the inverse of a lower triangle (N, N) in its place, by halves: faster than LAPACK."""
    if len(L) <= SMALL_TRIANGLE:
        L[:], _ = lapack.dtrtri(L, lower=True)
        return
    half = len(L) // 2
    first, mixed, second = L[:half, :half], L[half:, :half], L[half:, half:]
    invert_triangle(first)
    invert_triangle(second)
    mixed[:] = blas.dtrmm(-1.0, second, blas.dtrmm(1.0, first, mixed, side=True, lower=True), lower=True)
