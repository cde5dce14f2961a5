"""Test functions with a known optimum, if wanted in a random subspace of many parameters, and with noise.

The functions take points (N, k), give values (N,) and are to be minimised, as the literature has them. The
task :class:`Function` returns minus the value, which is maximised.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from klimb._validation import FloatArray, IntArray, lookup, samples, whole
from klimb.tasks.task import episode_seeds

STYBLINSKI_TANG_MINIMIZER = -2.903534027771177095  # root of 4 x^3 - 32 x + 5
STYBLINSKI_TANG_MINIMUM = -39.166165703771415464  # per coordinate
BLOCK = 2**17  # numbers at a time: the temporary arrays of a long batch stay in the cache
LARGEST_FRAME = 2**28  # numbers in a rotation: 2 GiB


def sphere(x: ArrayLike) -> FloatArray:
    """Sum of x_i^2; minimum 0 at 0."""
    x = _rows(x)
    return _sum(x * x)


def ellipsoid(x: ArrayLike) -> FloatArray:
    """Sum of 10^(6 i / (k - 1)) x_i^2 for i = 0 to k - 1; minimum 0 at 0, a million times steeper one way."""
    x = _rows(x)
    return _sum(10.0 ** (6 * np.arange(x.shape[1]) / max(1, x.shape[1] - 1)) * (x * x))


def rosenbrock(x: ArrayLike) -> FloatArray:
    """Sum of 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2; minimum 0 at (1, ..., 1), along a curved valley."""
    x = _rows(x)
    valley, along = x[:, 1:] - x[:, :-1] * x[:, :-1], 1 - x[:, :-1]
    return _sum(100 * (valley * valley) + along * along)


def rastrigin(x: ArrayLike) -> FloatArray:
    """Sum of x_i^2 + 10 (1 - cos 2 pi x_i); minimum 0 at 0, and a local one near every grid point."""
    x = _rows(x)
    # 1 - cos 2a = 2 sin^2 a loses no digits near the minimum, and whole periods are taken off exactly
    wave = np.sin(np.pi * (x - np.rint(x)))
    return _sum(x * x + 20 * (wave * wave))


def ackley(x: ArrayLike) -> FloatArray:
    """20 - 20 exp(-0.2 rms x) + e - exp(mean cos 2 pi x_i); minimum 0 at 0, a funnel full of small pits."""
    x = _rows(x)
    k = x.shape[1]
    wave = np.sin(np.pi * (x - np.rint(x)))
    # each part is written so that it loses no digits near the minimum; cos 2a - 1 = -2 sin^2 a
    funnel = -20 * np.expm1(-0.2 * np.sqrt(_sum(x * x) / k))
    total: FloatArray = funnel - math.e * np.expm1(-2 * _sum(wave * wave) / k)
    return total


def styblinski_tang(x: ArrayLike) -> FloatArray:
    """Half the sum of x_i^4 - 16 x_i^2 + 5 x_i; minimum -39.166 each at -2.9035, and a rival at 2.7468."""
    x = _rows(x)
    return _sum(0.5 * x * (x * (x * x - 16) + 5))


def himmelblau(x: ArrayLike) -> FloatArray:
    """Sum over the pairs (x, y) of (x^2 + y - 11)^2 + (x + y^2 - 7)^2; minimum 0, for one at all (3, 2).

    k must be even. Every pair has three more minima of 0, near (-2.81, 3.13), (-3.78, -3.28), (3.58, -1.85).
    """
    points = _rows(x)
    x, y = points[:, ::2], points[:, 1::2]
    first, second = x * x + y - 11, x + y * y - 7
    return _sum(first * first + second * second)


def _rows(x: ArrayLike) -> FloatArray:
    """Rows one after the other in memory, so that numpy treats a row alike in every batch."""
    return np.ascontiguousarray(x, dtype=np.float64)


def _sum(terms: FloatArray) -> FloatArray:
    """Sum of every row, in an order that depends on the row's length alone."""
    total: FloatArray = np.ascontiguousarray(terms).sum(axis=1)
    return total


def random_frame(rng: np.random.Generator, count: int, n: int) -> FloatArray:
    """`count` orthonormal rows (count, n) in uniformly random directions.

    Gram-Schmidt on normal vectors, each step done twice for full precision. BLAS is left out: its sums depend
    on the number of threads, and a task must be the same to the last bit in every worker.
    """
    frame = rng.standard_normal((count, n))
    for k, row in enumerate(frame):
        for _ in range(2):
            row -= np.einsum("kn,k->n", frame[:k], np.einsum("kn,n->k", frame[:k], row))
            row /= math.sqrt(np.einsum("n,n->", row, row))
    return frame


@dataclass(frozen=True)
class Landscape:
    """What the task needs to know about a function.

    Attributes
    ----------
    values
        The function, (N, k) -> (N,).
    minimizer
        Where it is least; repeated over the coordinates.
    minimum
        Its least value, per coordinate.
    initial_std
        Standard deviation around 0 with which a search covers the interesting region.
    minimal_k
        The least number of coordinates; a multiple of the minimizer's length is needed as well.
    """

    values: Callable[[ArrayLike], FloatArray]
    minimizer: tuple[float, ...] = (0.0,)
    minimum: float = 0.0
    initial_std: float = 1.0
    minimal_k: int = 1

    @property
    def shifted(self) -> bool:
        """Whether the task moves the minimum, since the search would start right on it."""
        return not any(self.minimizer)


FUNCTIONS = {
    "sphere": Landscape(sphere),
    "ellipsoid": Landscape(ellipsoid),
    "rosenbrock": Landscape(rosenbrock, (1.0,), initial_std=0.5, minimal_k=2),
    "rastrigin": Landscape(rastrigin, initial_std=2.0),
    "ackley": Landscape(ackley, initial_std=2.0),
    "styblinski-tang": Landscape(
        styblinski_tang, (STYBLINSKI_TANG_MINIMIZER,), STYBLINSKI_TANG_MINIMUM, initial_std=2.0
    ),
    "himmelblau": Landscape(himmelblau, (3.0, 2.0), initial_std=2.0, minimal_k=2),
}


@dataclass(frozen=True)
class Function:
    """Maximise minus a test function of k coordinates, hidden among n parameters.

    Sphere, ellipsoid, Rastrigin and Ackley are least at 0, where a search starts. Here their optimum is
    moved, in each coordinate by a distance drawn uniformly from 0.5 to 1.5 times `initial_std` to a random
    side. The other functions are left as they are. `initial_std` is 1 for sphere and ellipsoid, 0.5 for
    Rosenbrock (whose optimum, at 1, lies two of them away) and 2 for the others (so that their minima, within
    +-4, are in reach).

    Parameters
    ----------
    function
        "sphere", "ellipsoid", "rosenbrock", "rastrigin", "ackley", "styblinski-tang" or "himmelblau".
    n_parameters
        Length of a parameter vector, n.
    n_effective
        Number k of coordinates that count, all n if None; the others change nothing. Rosenbrock needs at
        least 2, Himmelblau an even number, as it is a sum over pairs.
    rotated
        Turn the parameters at random first: k random orthogonal directions count instead of k parameters.
    noise
        Standard deviation of the normal noise on every return.
    instance
        Seed of the choice of coordinates or directions, and of the optimum where it is moved.
    """

    function: str = "sphere"
    n_parameters: int = 10
    n_effective: int | None = None
    rotated: bool = False
    noise: float = 0.0
    instance: int = 0

    def __post_init__(self) -> None:
        landscape = lookup("function", self.function, FUNCTIONS)
        n = whole("n_parameters", self.n_parameters, 1)
        k = n if self.n_effective is None else whole("n_effective", self.n_effective, 1, n)
        pair = len(landscape.minimizer)
        if k < landscape.minimal_k or k % pair:
            wanted = f"at least {landscape.minimal_k}" if pair == 1 else "an even number of"
            raise ValueError(
                f"{self.function} needs {wanted} coordinates, but {k} came: "
                f"change {'n_parameters' if self.n_effective is None else 'n_effective'}."
            )
        if not isinstance(self.rotated, (bool, np.bool_)):
            raise ValueError(f"rotated must be True or False, but {self.rotated!r} came.")
        if self.rotated and n * k > LARGEST_FRAME:
            raise ValueError(
                f"rotated needs n_effective x n_parameters = {k} x {n} numbers in memory, which is more than "
                f"{LARGEST_FRAME}: set n_effective to at most {LARGEST_FRAME // n}."
            )
        number = isinstance(self.noise, (int, float, np.integer, np.floating))
        if not (number and 0 <= self.noise < math.inf):
            raise ValueError(f"noise must be a finite number of at least 0, but {self.noise!r} came.")
        checked = {
            "n_parameters": n,
            "n_effective": None if self.n_effective is None else k,
            "rotated": bool(self.rotated),
            "noise": float(self.noise),
            "instance": whole("instance", self.instance, 0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def optimum(self) -> float:
        """The best (expected) return: 0, or 39.166 per coordinate that counts for Styblinski-Tang."""
        return 0.0 - self._landscape.minimum * self._k  # not -0.0

    @property
    def initial_std(self) -> float:
        """See the class."""
        return self._landscape.initial_std

    @cached_property
    def effective_parameters(self) -> IntArray | None:
        """Places in theta of the k coordinates that count, ascending; None if rotated, as all do then."""
        if self.rotated:
            return None
        rng = np.random.default_rng(self.instance)
        return np.sort(rng.choice(self.n_parameters, self._k, replace=False)).astype(np.int64)

    @cached_property
    def optimal_parameters(self) -> FloatArray:
        """Parameters (n,) of the best return; zero wherever they do not count."""
        best = self._shift + np.resize(self._landscape.minimizer, self._k)
        if self._frame is None:
            theta = np.zeros(self.n_parameters)
            theta[self.effective_parameters] = best
        else:
            theta = np.einsum("kn,k->n", self._frame, best)
        theta.flags.writeable = False
        return theta

    @property
    def _landscape(self) -> Landscape:
        return FUNCTIONS[self.function]

    @property
    def _k(self) -> int:
        return self.n_parameters if self.n_effective is None else self.n_effective

    @cached_property
    def _frame(self) -> FloatArray | None:
        """The directions (k, n) that count, or None if these are parameters."""
        if not self.rotated:
            return None
        return random_frame(np.random.default_rng(self.instance), self._k, self.n_parameters)

    @cached_property
    def _shift(self) -> FloatArray:
        """How far (k,) the minimum is moved."""
        if not self._landscape.shifted:
            return np.zeros(self._k)
        # a stream of its own: the optimum's distance is the same rotated or not
        (rng,) = np.random.default_rng(self.instance).spawn(1)
        distance = rng.uniform(0.5, 1.5, self._k) * self.initial_std
        return np.where(rng.random(self._k) < 0.5, -distance, distance)

    def _coordinates(self, theta: FloatArray) -> FloatArray:
        """Pick the coordinates (N, k) that count."""
        if self._frame is None:
            return theta[:, self.effective_parameters] if self._k < self.n_parameters else theta
        coordinates = np.empty((len(theta), self._k))
        for i, row in enumerate(theta):
            # row by row and without BLAS, as the result for a row must not depend on the batch
            coordinates[i] = np.einsum("kn,n->k", self._frame, np.ascontiguousarray(row))
        return coordinates

    def evaluate(self, theta: ArrayLike, seed: int | ArrayLike = 0) -> FloatArray:
        """Give the returns (N,) of the parameter vectors `theta` (N, n); `seed` matters to the noise only."""
        theta = samples("theta", theta, self.n_parameters)
        seeds = episode_seeds(seed, len(theta))
        returns = np.empty(len(theta))
        rows = max(1, BLOCK // self._k)
        with np.errstate(over="ignore"):  # far enough out, the return is -inf
            for i in range(0, len(theta), rows):
                x = self._coordinates(theta[i : i + rows]) - self._shift
                returns[i : i + rows] = 0.0 - self._landscape.values(x)
        if self.noise:
            returns += [self.noise * np.random.default_rng(s).standard_normal() for s in seeds]
        return returns
