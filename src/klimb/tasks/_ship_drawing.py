"""The ship's way over the field, frame by frame."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from klimb._validation import FloatArray
from klimb.tasks.film import Film, Frame, chosen_times

# Seen in real time the ship would take a minute: these are frames per control step of .6 s.
STEPS_PER_SECOND = 15.0
# The ship's outline, its bow along +y, in units of the field.
HULL = np.array([[0.0, 5.0], [1.8, 1.0], [1.8, -4.0], [-1.8, -4.0], [-1.8, 1.0]])


def film(path: FloatArray, field: float, gate: tuple[float, float, float, float], size: int) -> Film:
    """Film a path (steps + 1, 4); frames are `size` pixels square."""
    times, rate = chosen_times(len(path) - 1, STEPS_PER_SECOND, STEPS_PER_SECOND)
    return Film(_frames(path, times, field, gate, size), len(times), rate)


def _frames(
    path: FloatArray, times: list[int], field: float, gate: tuple[float, float, float, float], size: int
) -> Iterator[Frame]:
    figure = Figure(figsize=(size / 100, size / 100), dpi=100)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(-4, field + 4), ylim=(-4, field + 4), facecolor="#dfeef7", xticks=[], yticks=[])
    axes.plot([0, field, field, 0, 0], [0, 0, field, field, 0], color="#7a99ac", linewidth=1.5)
    x0, y0, x1, y1 = gate
    axes.plot([x0, x1], [y0, y1], color="#d55e00", linewidth=4, solid_capstyle="round")
    (way,) = axes.plot([], [], color="#0072b2", linewidth=1.5)
    (hull,) = axes.fill(*HULL.T, color="#1b3a4b")
    for time in times:
        x, y, heading, _ = path[time]
        way.set_data(path[: time + 1, 0], path[: time + 1, 1])
        sine, cosine = np.sin(heading), np.cos(heading)
        hull.set_xy(HULL @ np.array([[cosine, -sine], [sine, cosine]]) + (x, y))
        canvas.draw()  # type: ignore[no-untyped-call]
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()  # type: ignore[no-untyped-call]
