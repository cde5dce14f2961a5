"""Tile coding (CMAC): a piecewise constant policy on several overlapping grids.

Each tiling is a grid of boxes over the observations, and an observation activates exactly one box per tiling.
The action is the sum of the active boxes' weights. T tilings of n boxes along a dimension of length L have
boxes of side L / (n - (T - 1)/T); in dimension d, tiling i is moved by ((i (2 d + 1)) mod T - T + 1) / T
sides, so that every tiling covers the whole range. (The odd factors 2 d + 1 keep the tilings from moving
along one diagonal. Where T divides a factor, all tilings agree in that dimension: with T = 3, the second.)

Reference: J. S. Albus, "A new approach to manipulator control: the cerebellar model articulation controller
(CMAC)", 1975.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, IntArray, numbers, vector, whole
from klimb.policies.policy import rows


@dataclass(frozen=True)
class Tiles:
    """Sum of the weights of the active tiles.

    Parameters
    ----------
    low, high
        Range of each tiled dimension, shape (d,).
    tiles
        Tiles along each dimension, d whole numbers.
    n_tilings
        Overlapping grids.
    n_actions
        Length of an action.
    columns
        Entries of the observation that are tiled, in this order; None if the observation has exactly the d
        tiled entries.

    Notes
    -----
    A parameter vector is the weights (n_actions, n_tilings, *tiles), row by row.

    Outside the range the nearest tile is active, so that the policy goes on as it does at the border. (In
    MushroomRL a tiling with no tile there is silent, and for some tilings that includes the upper border
    itself, so that the action jumps at a point that is still inside the range.) A NaN in a tiled entry
    activates no tile: index -1 in :meth:`active`, and a NaN action.
    """

    low: Sequence[float] | FloatArray
    high: Sequence[float] | FloatArray
    tiles: Sequence[int] = (5, 5, 6)
    n_tilings: int = 3
    n_actions: int = 1
    columns: Sequence[int] | None = None

    def __post_init__(self) -> None:
        low, high = vector("low", self.low), vector("high", self.high)
        tiles = tuple(whole("tiles", count, 1) for count in self.tiles)
        if not len(low) == len(high) == len(tiles):
            raise ValueError(
                "low, high and tiles must have one entry per dimension, "
                f"but they have {len(low)}, {len(high)} and {len(tiles)}."
            )
        if not (low < high).all():
            place = int(np.flatnonzero(~(low < high))[0])
            raise ValueError(
                f"high must be above low, but dimension {place} runs from {low[place]} to {high[place]}."
            )
        whole("n_tilings", self.n_tilings, 1)
        whole("n_actions", self.n_actions, 1)
        # tuples: a frozen setting must neither change with the caller's array nor make `==` ambiguous
        object.__setattr__(self, "low", tuple(low.tolist()))
        object.__setattr__(self, "high", tuple(high.tolist()))
        object.__setattr__(self, "tiles", tiles)
        if self.columns is not None:
            columns = tuple(whole("columns", column, 0) for column in self.columns)
            if len(columns) != len(tiles):
                raise ValueError(
                    f"columns must name {len(tiles)} entries of the observation, but {columns} came."
                )
            object.__setattr__(self, "columns", columns)

    @property
    def n_features(self) -> int:
        """Tiles of all tilings together."""
        return self.n_tilings * math.prod(self.tiles)

    @property
    def n_parameters(self) -> int:
        """One weight per action and tile."""
        return self.n_actions * self.n_features

    @cached_property
    def sides(self) -> FloatArray:
        """Side of a tile in each dimension, shape (d,)."""
        excess = (self.n_tilings - 1) / self.n_tilings
        sides: FloatArray = (np.array(self.high) - np.array(self.low)) / (np.array(self.tiles) - excess)
        sides.setflags(write=False)
        return sides

    @cached_property
    def origins(self) -> FloatArray:
        """Lower corner of each tiling, shape (n_tilings, d)."""
        tiling = np.arange(self.n_tilings)[:, None]
        dimension = np.arange(len(self.tiles))
        shifts = ((tiling * (2 * dimension + 1)) % self.n_tilings - self.n_tilings + 1) / self.n_tilings
        origins: FloatArray = np.array(self.low) + shifts * self.sides
        origins.setflags(write=False)
        return origins

    def active(self, observations: ArrayLike) -> IntArray:
        """Index of the active tile of each tiling among all `n_features`, shape (N, n_tilings)."""
        inputs = self._inputs(observations)
        places = np.floor((inputs[:, None, :] - self.origins) / self.sides)
        lost = np.isnan(places).any(axis=-1)
        places[lost] = 0
        # clipped before it becomes an integer: an infinite place has no integer
        inside = np.clip(places, 0, np.array(self.tiles) - 1).astype(np.int64)
        flat = np.arange(self.n_tilings)
        for dimension, count in enumerate(self.tiles):
            flat = flat * count + inside[..., dimension]
        flat[lost] = -1
        return flat

    def act(self, theta: ArrayLike, observations: ArrayLike, step: int = 0) -> FloatArray:
        """Actions (N, n_actions) of parameters (N, n) at observations (N, o); any step."""
        theta = rows("theta", theta, self.n_parameters)
        weights = theta.reshape(-1, self.n_actions, self.n_features)
        active = self.active(observations)
        if len(active) != len(theta):
            raise ValueError(
                f"observations must have one row per row of theta, {len(theta)} of them, "
                f"but there are {len(active)}."
            )
        row = np.arange(len(theta))
        actions = np.zeros((len(theta), self.n_actions))
        for tiling in range(self.n_tilings):
            actions += weights[row, :, active[:, tiling]]
        actions[(active < 0).any(axis=1)] = np.nan
        return actions

    def _inputs(self, observations: ArrayLike) -> FloatArray:
        if self.columns is None:
            return rows("observations", observations, len(self.tiles))
        array = numbers("observations", observations)
        if array.ndim != 2 or array.shape[1] <= max(self.columns):
            raise ValueError(
                f"observations must have shape (N, o) and reach column {max(self.columns)}, "
                f"but its shape is {array.shape}."
            )
        return array[:, list(self.columns)]
