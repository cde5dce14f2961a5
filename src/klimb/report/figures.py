"""The paper's figures: learning curves with confidence bands, estimators, and the picture of one update.

Everything comes in as arrays and names. A colour belongs to an algorithm in all figures; Okabe and Ito's
palette first, which colour-blind readers can tell apart, then darker ones that differ in line style too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from klimb._validation import FloatArray
from klimb.report.curves import GREY, bend_unit, bending, check_format, round_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"

PALETTE = {
    "dr-creps": VERMILION,
    "dr-creps-plain": ORANGE,
    "random": "#7A7A7A",
    "random-plain": "#B8B8B8",
    "dr-reps": PURPLE,
    "creps": BLUE,
    "creps-pe": SKY,
    "creps-small-batch": SKY,
    "more": GREEN,
    "reps": "#5D3A9B",
    "reps-pe": PURPLE,
    "rwr": GREY,
    "pro": GREEN,
    "nes": BLACK,
    "es": "#7A7A7A",
    "cem": "#117733",
    "ppo": "#882255",
    "trpo": "#5D3A9B",
    "reinforce": PURPLE,
    "nelder-mead": "#999933",
    "l-bfgs": "#6F4E37",
    # the ablations of lambda: dark to light, readable in grey
    "lambda-0.1": "#440154",
    "lambda-0.3": "#3B528B",
    "lambda-0.5": "#21918C",
    "lambda-0.7": "#5EC962",
    "lambda-0.9": "#D9C51B",
    "lambda-1.0": VERMILION,
}
LINES: dict[str, Any] = {
    "solid": "-",
    "dashed": (0, (4.5, 1.6)),
    "dotted": (0, (1.1, 1.3)),
    "dash-dot": (0, (5, 1.4, 1.2, 1.4)),
}
ESTIMATOR_STYLES = {
    "regression": ("regression (klimb, scikit-learn)", VERMILION, "-"),
    "ksg": ("KSG", BLUE, LINES["dashed"]),
    "histogram": ("histogram, 4 bins", GREEN, LINES["dash-dot"]),
}
SHOWN_SEEDS = 4  # of the estimators, a panel each
FEW_SAMPLES = 200  # up to here the paper calls the samples few

RULES: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "legend.fontsize": 8.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "axes.linewidth": 0.7,
    "font.family": "DejaVu Sans",
    "svg.hashsalt": "klimb",  # the same picture is the same file
    "svg.fonttype": "none",
    "path.simplify": True,
}


class Curve(NamedTuple):
    """A line of a panel."""

    label: str
    colour: str
    """A name of :data:`PALETTE`."""
    line: str
    """A name of :data:`LINES`."""
    episodes: FloatArray
    """(k,)"""
    values: FloatArray
    """(seeds, k), NaN where there is none"""


class Panel(NamedTuple):
    """One coordinate system."""

    title: str
    ylabel: str
    curves: Sequence[Curve]
    optimum: float | None = None
    """The best possible value, drawn as a dashed line."""
    share: bool = False
    """Whether values lie between 0 and 1."""


def mean_and_interval(values: FloatArray, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
    """Mean (k,) over the seeds of (seeds, k), and half the width of its confidence interval (Student's t)."""
    count = np.maximum((~np.isnan(values)).sum(axis=0), 1)
    mean = np.nansum(values, axis=0) / count
    spread = np.sqrt(np.nansum(np.square(values - mean), axis=0) / np.maximum(count - 1, 1))
    half = stdtrit(np.maximum(count - 1, 1), (1 + level) / 2) * spread / np.sqrt(count)
    return mean, np.where(count > 1, half, 0.0)


def draw_curves(panels: Sequence[Panel], paths: Sequence[str | os.PathLike[str]], *, title: str = "") -> None:
    """Draw learning curves, mean and 95 % confidence interval over seeds, into files."""
    if not any(curve.values.size for panel in panels for curve in panel.curves):
        raise ValueError("there are no runs to draw.")
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    labels = {curve.label for panel in panels for curve in panel.curves}
    legend_rows = -(-len(labels) // (3 if columns > 1 else 2))
    size = (5.0 if columns == 1 else 7.6, (3.3 if rows == 1 else 2.75 * rows) + 0.17 * legend_rows)
    with _figure(size, paths) as figure:
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True)
        for axes in grid.ravel()[len(panels) :]:
            axes.set_visible(False)
        handles: dict[str, Any] = {}
        for place, (axes, panel) in enumerate(zip(grid.ravel(), panels, strict=False)):
            handles |= {
                label: line for label, line in _draw_panel(axes, panel).items() if label not in handles
            }
            if place % columns == 0 or panel.ylabel != panels[place - 1].ylabel:
                axes.set_ylabel(panel.ylabel)
            if place >= len(panels) - columns:
                axes.set_xlabel("episodes")
        for alike in {panel.ylabel for panel in panels}:
            mine = [
                (axes, panel)
                for axes, panel in zip(grid.ravel(), panels, strict=False)
                if panel.ylabel == alike
            ]
            _scale([axes for axes, _ in mine], [panel for _, panel in mine])
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=3 if columns > 1 else 2,
            frameon=False,
            handlelength=2.6,
            columnspacing=1.4,
            title=f"mean and 95 % confidence interval over {_seeds(panels)}",
            title_fontsize=7.5,
        )


def _seeds(panels: Sequence[Panel]) -> str:
    """How many seeds most curves have."""
    most = max(len(curve.values) for panel in panels for curve in panel.curves)
    return f"{most} seeds" if most > 1 else "1 seed"


def _draw_panel(axes: Axes, panel: Panel) -> dict[str, Any]:
    """Draw lines and bands; the lines by their labels."""
    lines = {}
    for depth, curve in enumerate(reversed(panel.curves)):  # the first of the list lies on top
        if not curve.values.size:
            continue
        mean, half = mean_and_interval(curve.values)
        colour, style = PALETTE[curve.colour], LINES[curve.line]
        low, high = mean - half, mean + half
        if panel.share:
            low, high = np.clip(low, 0, 1), np.clip(high, 0, 1)
        axes.fill_between(curve.episodes, low, high, color=colour, alpha=0.16, lw=0, zorder=2)
        (line,) = axes.plot(curve.episodes, mean, color=colour, ls=style, lw=1.5, zorder=3 + depth / 100)
        lines[curve.label] = line
    if panel.optimum is not None:
        axes.axhline(panel.optimum, color=GREY, lw=0.9, ls=(0, (5, 4)), zorder=1)
        axes.annotate(
            f"optimum {panel.optimum:.4g}".replace("-", "\N{MINUS SIGN}"),
            xy=(1, panel.optimum),
            xycoords=axes.get_yaxis_transform(),
            xytext=(0, 2.5),
            textcoords="offset points",
            ha="right",
            color=GREY,
            fontsize=7.5,
        )
    axes.set_title(panel.title, loc="left")
    _dress(axes)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=6)
    ends = [curve.episodes.max() for curve in panel.curves if curve.episodes.size]
    axes.set_xlim(0, max(ends, default=1))
    return {curve.label: lines[curve.label] for curve in panel.curves if curve.label in lines}


def _dress(axes: Axes) -> None:
    axes.grid(axis="y", color="#E6E6E6", lw=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _scale(all_axes: Sequence[Axes], panels: Sequence[Panel]) -> None:
    """Choose one vertical axis for panels of the same quantity.

    Returns tend to begin far below where they end. If so the axis is bent: evenly spaced near the top and
    logarithmically far from it.
    """
    drawn = [curve.values for panel in panels for curve in panel.curves if curve.values.size]
    means = [mean_and_interval(values)[0] for values in drawn]
    if panels[0].share:
        high = max(float(mean.max()) for mean in means)
        for axes in all_axes:
            axes.set_ylim((-0.02, 1.02) if high > 0.5 else (0, 1.3 * high or 1))
        return
    seen = np.concatenate(means)
    optimum = panels[0].optimum
    top = float(seen.max()) if optimum is None else max(float(seen.max()), optimum)
    low = float(seen.min())
    span = top - low
    # the typical distance of an end from the top, over the curves
    gap = top - float(np.median([mean[-1] for mean in means]))
    unit = bend_unit(span, gap)
    if unit is None:
        margin = 0.05 * (span or 1.0)
        for axes in all_axes:
            axes.set_ylim(low - margin, top + 1.6 * margin)
        return
    bend, unbend = bending(top, unit)
    height = -bend(low)
    bottom, ceiling = float(unbend(-1.03 * height)), float(unbend(0.08 * height))
    for axes in all_axes:
        axes.set_yscale("function", functions=(bend, unbend))
        axes.set_ylim(bottom, ceiling)
        axes.set_yticks(round_numbers(bottom, ceiling, top, bend))
        axes.yaxis.set_major_formatter("{x:,.10g}")
        axes.minorticks_off()


def draw_estimators(
    estimates: Mapping[int, Mapping[str, tuple[FloatArray, FloatArray, float]]],
    paths: Sequence[str | os.PathLike[str]],
    *,
    title: str = "",
) -> None:
    """Draw estimates of mutual information against the number of samples, a panel per seed.

    Parameters
    ----------
    estimates
        By seed and estimator: samples (k,), estimates (k,) and the analytic value.
    """
    seeds = sorted(estimates)[:SHOWN_SEEDS]
    with _figure((7.6, 5.0), paths) as figure:
        grid = figure.subplots(2, 2, sharex=True)
        for axes, seed in zip(grid.ravel(), seeds, strict=False):
            for name, (samples, values, _) in estimates[seed].items():
                label, colour, style = ESTIMATOR_STYLES[name]
                axes.plot(samples, values, color=colour, ls=style, lw=1.3, label=label)
            analytic = estimates[seed]["regression"][2]
            axes.axhline(analytic, color=GREY, lw=1.0, ls=(0, (5, 4)), label="analytic value")
            axes.axvspan(0, FEW_SAMPLES, color="#F2F2F2", zorder=0)
            axes.set_title(f"random seed {seed}", loc="left")
            axes.set_xlim(0, samples.max())
            _dress(axes)
        for axes in grid[:, 0]:
            axes.set_ylabel("mutual information in nats")
        for axes in grid[-1]:
            axes.set_xlabel("samples")
        for axes in grid.ravel()[len(seeds) :]:
            axes.set_visible(False)
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)


def draw_overview(
    matrices: Mapping[str, FloatArray], paths: Sequence[str | os.PathLike[str]], *, title: str = ""
) -> None:
    """Draw the matrices of one update and one sampling step, with what leads from one to the next.

    Local coordinates are drawn with the selected ones first.
    """
    chosen = matrices["selected"][0].astype(int)
    n = matrices["covariance"].shape[0]
    order = np.concatenate([chosen, np.setdiff1d(np.arange(n), chosen)])
    m = chosen.size

    def sorted_(name: str) -> FloatArray:
        matrix: FloatArray = matrices[name][np.ix_(order, order)]
        return matrix

    steps: list[tuple[FloatArray, str, str, bool]] = [
        (matrices["covariance"], r"belief  $\Sigma$", "rotate into its axes", False),
        (sorted_("local"), r"local  $U^\top \Sigma\, U$", "select the effective", True),
        (matrices["block"], r"effective block  $m \times m$", "update (CREPS)", False),
        (matrices["updated block"], "updated block", "put back", False),
        (sorted_("substituted"), "substituted, local", "rotate back", True),
        (matrices["new covariance"], r"new belief  $\Sigma'$", "its axes, damp the others", False),
        (sorted_("damped"), r"damped by $\lambda$, new local", "rotate back", True),
        (matrices["sampling covariance"], "sampling covariance", "", False),
    ]
    largest = max(float(np.abs(matrix).max()) for matrix, *_ in steps)
    with _figure((8.6, 5.5), paths) as figure:
        grid = figure.subplots(2, 4, gridspec_kw={"hspace": 0.04})
        for place, (axes, (matrix, name, action, framed)) in enumerate(zip(grid.ravel(), steps, strict=True)):
            # the root keeps small entries visible and the sign
            shown = np.sign(matrix) * np.sqrt(np.abs(matrix) / largest)
            size = matrix.shape[0]
            axes.imshow(shown, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest", aspect="equal")
            axes.set_xlim(-0.5, n - 0.5)
            axes.set_ylim(n - 0.5, -0.5)
            if size < n:  # a block is drawn to scale, in the place where it belongs
                axes.set_facecolor("#FAFAFA")
            if framed or size < n:
                frame = np.array([-0.5, m - 0.5, m - 0.5, -0.5, -0.5])
                axes.plot(frame, frame[[0, 0, 1, 1, 0]], color=BLACK, lw=1.3, clip_on=False)
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(color="#BBBBBB", lw=0.6)
            axes.set_title(f"{place + 1}  {name}", loc="left", fontsize=9)
            if action:
                axes.set_xlabel(f"{action}  \N{RIGHTWARDS ARROW}", fontsize=8.5, color=GREY, loc="right")
        figure.suptitle(title, x=0.01, ha="left", fontsize=10.5)


@contextmanager
def _figure(size: tuple[float, float], paths: Sequence[str | os.PathLike[str]]) -> Iterator[Figure]:
    """A figure to draw on, which is then written to every path."""
    for path in paths:
        check_format(path)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RULES):
        figure = Figure(figsize=size, dpi=180, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
        for path in paths:
            is_svg = os.fspath(path).endswith(".svg")
            figure.savefig(path, metadata={"Date": None} if is_svg else None)
