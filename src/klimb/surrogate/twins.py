"""Episodes in pairs: mirrored, or run twice."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from klimb._validation import FloatArray, IntArray
from klimb.state import Episodes

# Marks of two episodes next to each other: of mirrored parameters, of the mean, and of another sample twice.
MIRRORING, TWICE, AWAY = (1, -1), (2, 3), (4, 5)
# Samples m + s and m - s count as twins if they mirror each other up to this share of |s|^2.
MIRRORED = 1e-6


class Twins(NamedTuple):
    """Which rows mirror each other: `first` and `second` (P,), and those that are `alone` (S,)."""

    first: IntArray
    second: IntArray
    alone: IntArray

    def parts(self, rows: FloatArray) -> FloatArray:
        """Odd parts of the twins, their even parts, those alone: an orthogonal change of (N,)."""
        a, b = rows[self.first], rows[self.second]
        return np.concatenate([(a - b) * math.sqrt(0.5), (a + b) * math.sqrt(0.5), rows[self.alone]])


def find_twins(z: FloatArray) -> IntArray:
    """An order of the whitened samples (N, n) and their marks, (2, N): twins next to each other.

    They are marked as :data:`MIRRORING`; of those that were drawn twice the nearest, which is the mean, as
    :data:`TWICE` and the others as :data:`AWAY`. All of these have the same length, so that they are
    neighbours when sorted by it. The others have 0 and keep their order, behind.
    """
    length = np.einsum("ij,ij->i", z, z)
    order = np.argsort(length, kind="stable")
    least = MIRRORED * length[order[1:]]
    mirrored = np.square(z[order[:-1]] + z[order[1:]]).sum(1) <= least
    repeated = np.square(z[order[:-1]] - z[order[1:]]).sum(1) <= least
    paired: list[int] = []
    twin: list[int] = []
    place = 0
    while place < mirrored.size:
        if mirrored[place] or repeated[place]:
            paired += [int(order[place]), int(order[place + 1])]
            if repeated[place]:  # the mean itself mirrors itself as well
                twin += AWAY if TWICE[0] in twin else TWICE
            else:
                twin += MIRRORING
            place += 1
        place += 1
    alone = sorted(set(range(len(z))).difference(paired))
    return np.array([[*paired, *alone], [*twin, *[0] * len(alone)]], dtype=np.int64)


def pairs(twin: IntArray, marks: tuple[int, int]) -> IntArray:
    """Where the first is of all pairs with these marks that are still both there."""
    return np.flatnonzero((twin[:-1] == marks[0]) & (twin[1:] == marks[1]))


def matched(twin: IntArray) -> Twins:
    """The twins that are still both there, and the others."""
    first = pairs(twin, MIRRORING)
    alone = np.ones(twin.size, dtype=np.bool_)
    alone[first] = alone[first + 1] = False
    return Twins(first, first + 1, np.flatnonzero(alone))


def run_once(episodes: Episodes) -> Episodes:
    """Samples that were run twice as one episode with the average of their returns, as if on their own."""
    first = pairs(episodes.twin, AWAY)
    if first.size == 0:
        return episodes
    returns, twin = episodes.returns.copy(), episodes.twin.copy()
    returns[first] = returns[first] / 2 + returns[first + 1] / 2
    twin[first] = 0
    others = np.delete(np.arange(returns.size), first + 1)
    return Episodes(episodes.theta, returns, twin).rows(others)
