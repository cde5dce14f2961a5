"""The search distribution: a Gaussian that mixes only the coordinates it has to.

Symbols: mean mu (n,), covariance Sigma = U diag(variances) U', where the orthogonal U is `rotation` on the t
`mixed` coordinates and the identity elsewhere. A diagonal Gaussian has t = 0, a full one t = n.

Local coordinates z = U' (x - mu) are those in which the covariance is diag(variances). Local coordinate j
is parameter j itself unless j is mixed; the mixed ones are the columns of the rotation, in the same order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cholesky, lapack

from klimb._validation import FloatArray, IntArray, numbers, samples, vector

# Beyond these a standard deviation or its reciprocal could no longer be squared safely.
SMALLEST_VARIANCE, LARGEST_VARIANCE = 1e-200, 1e200

# Variances that differ by less than this share are equal up to rounding.
ALIKE = 1e-9


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A normal distribution over n parameters, immutable.

    Attributes
    ----------
    mean : (n,)
    variances : (n,)
        Along the local coordinates.
    mixed : (t,)
        The parameters that the rotation mixes, in ascending order.
    rotation : (t, t)
        Orthogonal; its columns are the directions of the mixed local coordinates.
    """

    mean: FloatArray
    variances: FloatArray
    mixed: IntArray
    rotation: FloatArray

    @property
    def n_parameters(self) -> int:
        """Number of parameters, n."""
        return self.mean.size

    @property
    def covariance(self) -> FloatArray:
        """The dense covariance (n, n), made on request."""
        covariance = np.diag(self.variances)
        if self.mixed.size:
            R = self.rotation
            block = (R * self.variances[self.mixed]) @ R.T
            covariance[np.ix_(self.mixed, self.mixed)] = (block + block.T) / 2
        return covariance

    @property
    def std(self) -> FloatArray:
        """Standard deviation of every parameter, (n,)."""
        variances = self.variances.copy()
        if self.mixed.size:
            variances[self.mixed] = self.rotation**2 @ self.variances[self.mixed]
        return np.sqrt(variances)

    @property
    def entropy(self) -> float:
        """Differential entropy in nats."""
        return 0.5 * (self.n_parameters * (1 + math.log(2 * math.pi)) + float(np.log(self.variances).sum()))

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw `count` parameter vectors, (count, n)."""
        noise = rng.standard_normal((count, self.n_parameters))  # ~ N(0, I)
        return self.shaped(noise, np.sqrt(self.variances))

    def shaped(self, noise: FloatArray, std: FloatArray) -> FloatArray:
        """Parameters x = mu + U diag(std) U' e of the rows e of `noise`, (N, n), whose memory is reused.

        Of all roots of a covariance the symmetric one alone is the same whichever axes were taken among those
        of equal length. These turn with the last bit of a fit, which is another on every kind of processor.
        """
        self._rotate(noise, self.rotation.T)
        noise *= std
        return self.from_local(noise, overwrite=True)

    def to_local(self, theta: FloatArray) -> FloatArray:
        """Local coordinates z = U' (x - mu) of the rows of `theta`, (N, n)."""
        local = theta - self.mean
        self._rotate(local, self.rotation.T)
        return local

    def from_local(self, local: FloatArray, *, overwrite: bool = False) -> FloatArray:
        """Parameters x = mu + U z of the rows of `local`, (N, n); `overwrite` reuses their memory."""
        theta = local if overwrite else local.copy()
        self._rotate(theta, self.rotation)
        theta += self.mean
        return theta

    def _rotate(self, rows: FloatArray, rotation: FloatArray) -> None:
        """Apply `rotation` to the mixed entries of each row, in place.

        Row by row, so that a row's result does not depend on the rows beside it.
        """
        if self.mixed.size == rows.shape[-1]:
            rows[...] = np.matmul(rotation, rows[..., None])[..., 0]
        elif self.mixed.size:
            rows[..., self.mixed] = np.matmul(rotation, rows[..., self.mixed][..., None])[..., 0]

    def log_pdf(self, theta: ArrayLike) -> FloatArray:
        """Log density of the rows of `theta`, (N,)."""
        local = self.to_local(samples("theta", theta, self.n_parameters))
        squared = np.square(local) @ (1 / self.variances)
        normalizer = self.n_parameters * math.log(2 * math.pi) + np.log(self.variances).sum()
        log_density: FloatArray = -0.5 * (squared + normalizer)
        return log_density

    def kl(self, other: Gaussian) -> float:
        """KL(self || other) in nats.

        1/2 [tr(So^-1 S) - n + (mo - m)' So^-1 (mo - m) + log det So - log det S]
        """
        shift = other.to_local(self.mean)
        spread = self.variances.copy()  # becomes the diagonal of Uo' Sigma Uo
        if not other.mixed.size:
            spread[self.mixed] = np.square(self.rotation) @ self.variances[self.mixed]
        else:
            both = np.union1d(self.mixed, other.mixed)
            axes = other._rotation_on(both).T
            if self.mixed.size:
                axes = axes @ self._rotation_on(both)
            spread[both] = np.square(axes) @ self.variances[both]
        ratio = spread / other.variances
        log_ratio = np.log(other.variances) - np.log(self.variances)
        return float(0.5 * np.sum(ratio - 1 + np.square(shift) / other.variances + log_ratio))

    def _rotation_on(self, coordinates: IntArray) -> FloatArray:
        """The rotation seen on a sorted superset of the mixed coordinates."""
        if coordinates.size == self.mixed.size:
            return self.rotation
        rotation = np.eye(coordinates.size)
        place = np.searchsorted(coordinates, self.mixed)
        rotation[np.ix_(place, place)] = self.rotation
        return rotation

    def with_settled_axes(self) -> Gaussian:
        """The same distribution, with axes that it alone decides also where several are of equal length.

        Among equals any basis would do, and which one an eigendecomposition gives hangs on the last bit. Here
        the first one follows the parameter nearest to these axes, the second adds the next, and so on.
        """
        variances = self.variances[self.mixed]
        order = np.argsort(variances, kind="stable")
        alike = np.diff(variances[order]) <= ALIKE * variances[order][1:]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], alike, [False]]).astype(np.int8)))
        if not edges.size:
            return self
        rotation = self.rotation.copy()
        for first, last in edges.reshape(-1, 2):
            equals = np.sort(order[first : last + 1])
            axes = rotation[:, equals]
            nearness = np.square(axes).sum(1).round(6)  # so that the last bit does not decide here, too
            nearest = np.sort(np.argsort(-nearness, kind="stable")[: equals.size])
            turn, triangle = np.linalg.qr(axes[nearest].T)
            rotation[:, equals] = axes @ (turn * np.where(np.diag(triangle) < 0, -1.0, 1.0))
        return replace(self, rotation=rotation)

    def with_block(self, block: IntArray | None, local: Gaussian) -> Gaussian:
        """Replace the distribution of some local coordinates.

        Parameters
        ----------
        block : (m,), ascending, or None for all
            The local coordinates to replace.
        local : Gaussian over these m coordinates
            Their new distribution, as seen in the present local coordinates.
        """
        if block is None:
            block = np.arange(self.n_parameters)
        shift = np.zeros(self.n_parameters)
        shift[block] = local.mean
        variances = self.variances.copy()
        variances[block] = local.variances.clip(SMALLEST_VARIANCE, LARGEST_VARIANCE)
        mixed, rotation = self.mixed, self.rotation
        if local.mixed.size:
            turned = block[local.mixed]
            mixed = turned if turned.size == self.n_parameters else np.union1d(self.mixed, turned)
            rotation = self._rotation_on(mixed)
            if turned.size == mixed.size:
                rotation = rotation @ local.rotation
            else:
                columns = np.searchsorted(mixed, turned)
                rotation = rotation.copy()
                rotation[:, columns] = rotation[:, columns] @ local.rotation
        return Gaussian(self.from_local(shift, overwrite=True), variances, mixed, rotation)


def diagonal(mean: ArrayLike, std: ArrayLike) -> Gaussian:
    """A Gaussian with independent parameters; `std` is one number or one per parameter."""
    mean = vector("mean", mean).copy()
    std = numbers("std", std)
    if std.shape not in ((), mean.shape):
        raise ValueError(
            f"std must be one number or one per parameter, shape {mean.shape}, but its shape is {std.shape}."
        )
    low, high = math.sqrt(SMALLEST_VARIANCE), math.sqrt(LARGEST_VARIANCE)
    if not ((std >= low) & (std <= high)).all():
        raise ValueError(f"std must lie between {low:g} and {high:g} everywhere, but {std} came.")
    return unmixed(mean, np.broadcast_to(np.square(std), mean.shape).copy())


def on_diagonal(matrix: FloatArray) -> FloatArray:
    """The diagonal of a square matrix that lies in one piece, as a view to write to."""
    return matrix.ravel(order="K")[:: len(matrix) + 1]


def unmixed(mean: FloatArray, variances: FloatArray) -> Gaussian:
    """A Gaussian whose local coordinates are the parameters themselves."""
    return Gaussian(mean, variances, np.empty(0, dtype=np.int64), np.empty((0, 0)))


def from_covariance(mean: ArrayLike, covariance: ArrayLike) -> Gaussian:
    """A Gaussian with the given symmetric positive definite covariance (n, n)."""
    mean = vector("mean", mean).copy()
    n = mean.size
    covariance = samples("covariance", covariance, n)
    if covariance.shape != (n, n):
        raise ValueError(f"covariance must have the shape ({n}, {n}), but its shape is {covariance.shape}.")
    variances = np.diag(covariance)
    if not ((variances >= SMALLEST_VARIANCE) & (variances <= LARGEST_VARIANCE)).all():
        raise ValueError("covariance must be positive definite, but its diagonal is not positive everywhere.")
    # in units of the standard deviations, so that parameters of very different scales are judged alike
    std = np.sqrt(variances)
    correlation = covariance / std / std[:, None]
    asymmetry = float(np.abs(correlation - correlation.T).max())
    if asymmetry > 1e-8:
        raise ValueError(
            f"covariance must be symmetric, but entries differ by up to {asymmetry:.1e} of their scale; "
            "pass (C + C.T) / 2 if that is only rounding."
        )
    if not np.any(correlation - np.diag(np.diag(correlation))):
        return unmixed(mean, variances.copy())
    try:
        rows = cholesky((correlation + correlation.T) / 2)
    except np.linalg.LinAlgError:
        raise ValueError(
            "covariance must be positive definite, but a direction has no variance; "
            "add a small multiple of the identity."
        ) from None
    return from_whitened(mean, std, rows, log_det=2 * float(np.log(np.diag(rows)).sum()))


def from_whitened(
    mean: FloatArray, std: FloatArray, rows: FloatArray, log_det: float, ridge: float = 0.0
) -> Gaussian:
    """A Gaussian with the covariance diag(std) W diag(std), where W = ridge I + rows' rows.

    An eigendecomposition is enough unless the axes differ so much in length that the short ones drown in the
    rounding of the long ones, which the determinant tells; then a one-sided Jacobi method finds each axis to
    its own precision.

    Parameters
    ----------
    mean, std : (n,)
    rows : (k, n)
    log_det
        log det W.
    """
    scaled = rows * std
    covariance = scaled.T @ scaled
    on_diagonal(covariance)[:] += ridge * np.square(std)
    variances, rotation = np.linalg.eigh(covariance)
    exact = log_det + 2 * np.log(std).sum()
    if variances[0] <= 0 or abs(np.log(variances).sum() - exact) > 1e-10:
        factor = np.vstack([np.diag(math.sqrt(ridge) * std), scaled]) if ridge > 0 else scaled
        lengths, rotation = _right_singular(factor)
        variances = np.square(lengths)
    return Gaussian(mean, variances, np.arange(mean.size), rotation)


def _right_singular(matrix: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Singular values and right singular vectors of a (k, n) matrix with k >= n, each to high precision."""
    lengths, _, rotation, work, _, info = lapack.dgejsv(matrix, joba=0, jobu=3, jobv=0, jobr=0)
    if info != 0:  # not seen to happen for finite matrices
        raise np.linalg.LinAlgError(f"the Jacobi method failed with code {info}")
    return lengths * (work[0] / work[1]), rotation
