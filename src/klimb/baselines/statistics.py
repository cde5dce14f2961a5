"""Running statistics of observations, to normalise them by."""

from __future__ import annotations

import numpy as np

from klimb._validation import FloatArray
from klimb.policies.linear import CONSTANT


class Statistics:
    """Running mean and standard deviation of vectors (Chan's way of adding batches)."""

    def __init__(self, size: int) -> None:
        self.count = 0
        self.mean = np.zeros(size)
        self._squares = np.zeros(size)

    def add(self, values: FloatArray) -> None:
        """Take in vectors (N, size)."""
        count = len(values)
        if count == 0:
            return
        mean = values.mean(axis=0)
        total = self.count + count
        shift = mean - self.mean
        self._squares += np.square(values - mean).sum(axis=0) + np.square(shift) * self.count * count / total
        self.mean = self.mean + shift * count / total
        self.count = total

    @property
    def deviation(self) -> FloatArray:
        """Standard deviations (size,); 1 where nothing has varied yet."""
        if self.count < 2:
            return np.ones_like(self.mean)
        deviation = np.sqrt(self._squares / (self.count - 1))
        return np.where(deviation < CONSTANT, 1.0, deviation)
