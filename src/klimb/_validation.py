"""Checks at the boundary: every message names the argument, what came and the way out."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

Value = TypeVar("Value")

# Parameters above this size could not be squared.
LARGEST = 1e150


def nearest(name: str, names: Iterable[str]) -> str:
    """End of an error sentence: the name that was probably meant, and all there are."""
    names = sorted(names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}There are: {', '.join(names)}."


def lookup(kind: str, name: str, table: Mapping[str, Value]) -> Value:
    """``table[name]``, or a ValueError that names the nearest entry."""
    if name not in table:
        raise ValueError(f"unknown {kind} {name!r}: {nearest(str(name), table)}")
    return table[name]


def is_number(value: object) -> bool:
    """Whether `value` is a real number; a truth value is none."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def positive(name: str, value: float, *, infinite: bool = False) -> float:
    """Return `value` as a float if it is a number above zero; infinity only if `infinite`."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} must be a number above 0, but {value!r} came.")
    if math.isinf(value) and not infinite:
        raise ValueError(f"{name} must be finite, but {value!r} came.")
    return float(value)


def share(name: str, value: float) -> float:
    """Return `value` as a float if it lies in (0, 1]."""
    if not (is_number(value) and 0 < value <= 1):
        raise ValueError(f"{name} must lie in (0, 1], but {value!r} came; 1.0 turns it off.")
    return float(value)


def whole(name: str, value: int, low: int, high: float = math.inf) -> int:
    """Return `value` as an int if it is a whole number in low..high."""
    if not (is_number(value) and isinstance(value, (int, np.integer)) and low <= value <= high):
        limits = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ValueError(f"{name} must be a whole number {limits}, but {value!r} came.")
    return int(value)


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """Return `value` if it is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, but {value!r} came.")
    return value


def numbers(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a float64 array; not necessarily a copy."""
    try:
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}.") from None


def vector(name: str, value: ArrayLike) -> FloatArray:
    """Return `value` as a finite float64 vector with at least one entry."""
    array = numbers(name, value)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be a vector of shape (n,), but its shape is {array.shape}.")
    if not np.isfinite(array).all():
        place = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, but {name}[{place}] is {array[place]}.")
    return array


def samples(name: str, value: ArrayLike, n_parameters: int) -> FloatArray:
    """Return `value` as finite float64 rows of n_parameters each."""
    array = numbers(name, value)
    if array.ndim != 2 or array.shape[1] != n_parameters:
        raise ValueError(
            f"{name} must hold one parameter vector per row, shape (N, {n_parameters}), "
            f"but its shape is {array.shape}."
        )
    if array.size and not (array.min() >= -LARGEST and array.max() <= LARGEST):
        row, place = (int(index[0]) for index in np.nonzero(~(np.abs(array) <= LARGEST)))
        raise ValueError(
            f"{name} must be finite (and below {LARGEST:g}), but {name}[{row}, {place}] is "
            f"{array[row, place]}; leave that row out."
        )
    return array


def told(theta: ArrayLike, returns: ArrayLike, n: int) -> tuple[FloatArray, FloatArray]:
    """Check what a search is told: parameter vectors (N, n) and their returns (N,), NaN where one failed."""
    theta = samples("theta", theta, n)
    returns = numbers("returns", returns)
    if returns.shape != theta.shape[:1]:
        raise ValueError(
            f"returns must be one number per row of theta, shape {theta.shape[:1]}, "
            f"but their shape is {returns.shape}."
        )
    if np.isposinf(returns).any():
        place = int(np.flatnonzero(np.isposinf(returns))[0])
        raise ValueError(
            f"returns[{place}] is +infinity, which no episode can beat; mark a failed episode with NaN, "
            "or bound the return."
        )
    return theta, returns
