"""Films of episodes: a moving picture as GIF or MP4, or a strip of stills as PNG.

A task that can be watched has ``film(theta, seed, width, height) -> Film``. What draws the frames (OpenGL,
matplotlib) and what writes them is imported when it is needed; learning needs none of it.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Frame = NDArray[np.uint8]

STILLS = 6  # pictures of a strip
FORMATS = (".gif", ".mp4", ".png")


@dataclass(frozen=True, eq=False)
class Film:
    """Frames (height, width, 3) that are drawn as they are taken, `count` of them, `rate` per second."""

    frames: Iterator[Frame]
    count: int
    rate: float


@runtime_checkable
class Watchable(Protocol):
    """A task whose episodes can be watched."""

    def film(self, theta: ArrayLike, seed: int | ArrayLike = 0, *, width: int, height: int) -> Film:
        """Film the episode of one parameter vector (n,)."""
        ...


def chosen_times(steps: int, step_rate: float, rate: float, longest: int = 300) -> tuple[list[int], float]:
    """Which of `steps` + 1 states to show, `step_rate` per second of the episode, and the rate of the frames.

    Close to `rate` frames per second in real time; the last state is always shown, and no film has more than
    `longest` frames: a longer episode runs faster.
    """
    every = max(1, round(step_rate / rate), -(-steps // (longest - 1)))
    times = list(range(0, steps + 1, every))
    if times[-1] != steps:
        times.append(steps)
    return times, min(rate, step_rate)


def check_film_format(path: Path) -> None:
    """Raise a ValueError if a film cannot be written to a file of that name."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(
            f"a film goes to a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file (a strip of stills), "
            f"but {path.name!r} came."
        )
    if path.suffix.lower() == ".mp4":
        try:
            import imageio_ffmpeg  # noqa: F401
        except ImportError:
            raise ValueError(
                "MP4 needs a video encoder: pip install 'klimb[video]', or choose a .gif file."
            ) from None


def save_film(film: Film, path: Path) -> None:
    """Write a film; the file's ending says how."""
    check_film_format(path)
    write = {".gif": _save_gif, ".mp4": _save_mp4, ".png": _save_strip}[path.suffix.lower()]
    write(film, path)


def _save_gif(film: Film, path: Path) -> None:
    from PIL import Image

    pictures = [Image.fromarray(frame) for frame in film.frames]
    duration = round(1000 / film.rate)
    # the last picture stays for a second before the film begins again
    durations = [duration] * (len(pictures) - 1) + [1000]
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=durations, loop=0)


def _save_mp4(film: Film, path: Path) -> None:
    import imageio_ffmpeg

    writer = None
    try:
        for frame in film.frames:
            # encoders want even sides
            even = np.ascontiguousarray(frame[: frame.shape[0] // 2 * 2, : frame.shape[1] // 2 * 2])
            if writer is None:
                size = (even.shape[1], even.shape[0])
                writer = imageio_ffmpeg.write_frames(str(path), size, fps=film.rate, macro_block_size=2)
                writer.send(None)
            writer.send(even)
    finally:
        if writer is not None:
            writer.close()


def _save_strip(film: Film, path: Path) -> None:
    from PIL import Image

    wanted = set(np.linspace(0, film.count - 1, min(STILLS, film.count)).round().astype(int).tolist())
    stills = [frame for index, frame in enumerate(film.frames) if index in wanted]
    columns = min(3, len(stills))
    blank = np.full_like(stills[0], 255)
    stills += [blank] * (-len(stills) % columns)
    gap = 4
    padded = [np.pad(still, ((0, gap), (0, gap), (0, 0)), constant_values=255) for still in stills]
    rows = [np.hstack(padded[first : first + columns]) for first in range(0, len(padded), columns)]
    Image.fromarray(np.vstack(rows)[:-gap, :-gap]).save(path)


def choose_gl() -> None:
    """Pick an off-screen OpenGL for MuJoCo where there is no display; call it before mujoco is imported."""
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not sys.platform.startswith("linux") or os.environ.get("MUJOCO_GL") or has_display:
        return
    for library, name in (("EGL", "egl"), ("OSMesa", "osmesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = name
            return


GL_HELP = (
    "drawing needs OpenGL. Without a display, install EGL or OSMesa (Debian and Ubuntu: "
    "apt-get install libegl1 libgl1-mesa-dri, or libosmesa6) and set MUJOCO_GL=egl, or osmesa, before "
    "Python starts"
)
