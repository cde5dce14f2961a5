"""Learning curves."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from klimb._validation import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

# Okabe and Ito's palette, which colour-blind readers can tell apart
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#595959"

# A curve whose beginning lies more than this many times as far below the top as its end gets a bent axis.
LARGEST_LINEAR = 10.0

# Distances between the numbers on a bent axis, as shares of its length.
NARROWEST, WIDEST = 0.1, 0.25


def check_format(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError if a picture cannot be drawn into a file of this name."""
    if Path(path).suffix.lower() not in FORMATS:
        raise ValueError(f"a picture's name must end in {', '.join(FORMATS)}, but {os.fspath(path)!r} came.")


def plot_curve(
    curve: Mapping[str, ArrayLike] | NDArray[np.void],
    path: str | os.PathLike[str],
    *,
    title: str = "",
    optimum: float | None = None,
) -> None:
    """Draw returns against episodes into a file.

    Returns tend to begin far below where they end. If so, the axis is bent: distances below the top are
    spaced evenly near it and logarithmically far from it, so that a reader sees the whole climb and its end.

    Parameters
    ----------
    curve
        Has "episodes", "mean_return" and "best_return", (k,) each, one entry per update: ``result.curve`` of
        :func:`klimb.maximize`, or a mapping.
    path
        The file; its ending chooses the format.
    title
        Stands above the picture.
    optimum
        The best possible return, drawn as a dashed line.
    """
    check_format(path)
    episodes, mean, best = (
        np.asarray(curve[name], dtype=np.float64) for name in ("episodes", "mean_return", "best_return")
    )
    seen = np.concatenate([mean[np.isfinite(mean)], best[np.isfinite(best)]])
    if not seen.size:
        raise ValueError("curve must have at least one finite return to draw.")

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    marker = "o" if episodes.size == 1 else None
    axes.plot(episodes, best, color=ORANGE, lw=1.8, marker=marker, label="best episode so far")
    axes.plot(episodes, mean, color=BLUE, lw=1.8, marker=marker, label="mean of the batch")
    if optimum is not None:
        axes.axhline(optimum, color=GREY, lw=1.1, ls=(0, (5, 4)), zorder=1)
        axes.annotate(
            f"optimum {optimum:.5g}".replace("-", "\N{MINUS SIGN}"),
            xy=(1, optimum),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=GREY,
        )
    top = float(seen.max()) if optimum is None else max(float(seen.max()), optimum)
    _scale_returns(axes, float(seen.min()), top, mean)
    axes.set_xlim(0, episodes.max())
    axes.set_xlabel("episodes")
    axes.set_ylabel("return")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", color="#E3E3E3", lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", reverse=True)
    figure.savefig(path)


def _scale_returns(axes: Axes, low: float, top: float, mean: FloatArray) -> None:
    """Choose limits and spacing of the vertical axis, and where its numbers stand."""
    span = top - low
    if span <= 1e-9 * max(abs(top), abs(low), 1e-300):
        return
    end = mean[-max(1, mean.size // 5) :]
    end = end[np.isfinite(end)]
    gap = top - float(np.median(end)) if end.size else span
    unit = bend_unit(span, gap)
    if unit is None:
        axes.set_ylim(low - 0.05 * span, top + 0.1 * span)
        return

    bend, unbend = bending(top, unit)
    axes.set_yscale("function", functions=(bend, unbend))
    height = -bend(low)
    bottom, ceiling = float(unbend(-1.04 * height)), float(unbend(0.1 * height))
    axes.set_ylim(bottom, ceiling)
    axes.set_yticks(round_numbers(bottom, ceiling, top, bend))
    axes.yaxis.set_major_formatter("{x:,.10g}")
    axes.minorticks_off()


def bend_unit(span: float, gap: float) -> float | None:
    """Unit of the bent axis of a curve that spans so much and ends so far below its top; None if even."""
    return None if span <= LARGEST_LINEAR * gap else max(gap, 1e-3 * span)


def bending(top: float, unit: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A scale and its inverse: distances below `top` in proportion up to `unit`, then as their logarithm."""

    def bend(y: Any) -> Any:
        return np.arcsinh((y - top) / unit)

    def unbend(z: Any) -> Any:
        return top + unit * np.sinh(z)

    return bend, unbend


def round_numbers(low: float, high: float, top: float, bend: Callable[[float], float]) -> list[float]:
    """Round numbers from low to high, far enough apart on the bent axis to be read.

    The rounder a number, the earlier it is taken: multiples of 5, 2 and 1 times falling powers of ten. Near
    `top`, where the axis is stretched, finer ones find room; no finer than it takes to leave no wide gap.
    """
    start, height = bend(low), bend(high) - bend(low)
    taken: dict[float, float] = {}  # place on the axis, 0 to 1: number
    power = math.ceil(math.log10(max(abs(low), abs(high))))
    for step in (digit * 10.0**exponent for exponent in range(power, power - 8, -1) for digit in (5, 2, 1)):
        first, last = max(low, top - 12 * step), min(high, top + 12 * step)
        for multiple in range(math.ceil(first / step), math.floor(last / step) + 1):
            number = float(f"{multiple * step:.12g}")
            place = (bend(number) - start) / height
            if all(abs(place - other) >= NARROWEST for other in taken):
                taken[place] = number
        if np.diff([0.0, *sorted(taken), 1.0]).max() <= WIDEST:
            break
    return sorted(taken.values())
