"""Probabilistic movement primitive, as a deterministic policy: a weighted sum of bumps in time.

| symbol | meaning |
|---|---|
| z | phase, 0 at the first control step and 1 at the last |
| c | centre of a basis function, evenly spaced from -2 w to 1 + 2 w |
| w | width of a basis function: a variance, not a standard deviation |

The distribution over the weights, which makes the primitive "probabilistic", is klimb's search distribution.

Reference: A. Paraschos, C. Daniel, J. Peters, G. Neumann, "Probabilistic Movement Primitives", NeurIPS 2013.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, positive, whole
from klimb.policies.policy import mix, rows, step_within


@dataclass(frozen=True)
class ProMP:
    """Open-loop movement of several joints by normalised Gaussian bases.

    Parameters
    ----------
    n_joints
        Length of an action.
    n_bases
        Basis functions per joint.
    horizon
        Control steps of an episode.
    width
        Variance of a basis function in units of phase squared.

    Notes
    -----
    A parameter vector is the weights (n_joints, n_bases), row by row: the bases of the first joint come
    first. Action of joint j at phase z: sum_b weights[j, b] basis_b(z).
    """

    n_joints: int
    n_bases: int
    horizon: int
    width: float = 0.001

    def __post_init__(self) -> None:
        whole("n_joints", self.n_joints, 1)
        whole("n_bases", self.n_bases, 1)
        whole("horizon", self.horizon, 1)
        if not np.isfinite(positive("width", self.width)):
            raise ValueError(f"width must be finite, but {self.width!r} came.")

    @property
    def n_parameters(self) -> int:
        """One weight per joint and basis."""
        return self.n_joints * self.n_bases

    @property
    def n_actions(self) -> int:
        """One action per joint."""
        return self.n_joints

    @cached_property
    def basis(self) -> FloatArray:
        """Value of every basis at every step, shape (horizon, n_bases), read-only; every row sums to 1."""
        z = np.linspace(0.0, 1.0, self.horizon)[:, None]
        c = np.linspace(-2 * self.width, 1 + 2 * self.width, self.n_bases)
        exponent = -0.5 * (z - c) ** 2 / self.width
        # relative to the largest of the row: the normalised values are the same, and where all bumps are
        # narrow and far away they do not underflow to 0 / 0
        bumps = np.exp(exponent - exponent.max(axis=1, keepdims=True))
        basis: FloatArray = bumps / bumps.sum(axis=1, keepdims=True)
        basis.setflags(write=False)
        return basis

    def trajectory(self, theta: ArrayLike) -> FloatArray:
        """Actions of whole episodes, shape (N, horizon, n_joints), of parameters (N, n)."""
        return mix(self._weights(theta), self.basis)

    def act(self, theta: ArrayLike, observations: ArrayLike | None, step: int) -> FloatArray:
        """Actions (N, n_joints) at control step `step`; the observations are ignored."""
        step = step_within(step, self.horizon)
        return mix(self._weights(theta), self.basis[step : step + 1])[:, 0]

    def _weights(self, theta: ArrayLike) -> FloatArray:
        return rows("theta", theta, self.n_parameters).reshape(-1, self.n_joints, self.n_bases)
