"""TensorBoard event files: a callback for maximize, for a study, and for ``klimb run --tensorboard``."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np

from klimb.optimizer import Optimizer, Progress


class TensorBoard:
    """Writes what every update did to event files in `directory`; the step is the number of episodes.

    Examples
    --------
    >>> import klimb
    >>> with klimb.TensorBoard("runs/first") as board:  # doctest: +SKIP
    ...     klimb.maximize(f, klimb.creps(), mean=[0.0, 0.0], std=1.0, episodes=1000, callback=board)
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ImportError(
                "TensorBoard event files need tensorboardX: pip install 'klimb[tensorboard]'"
            ) from None
        self._writer: Any = SummaryWriter(os.fspath(directory))

    def __call__(self, progress: Progress) -> None:
        """Write one update; the callback."""
        info, optimizer = progress.info, progress.optimizer
        good = progress.returns[np.isfinite(progress.returns)]
        scalars = {
            "return/mean": float(good.mean()) if good.size else None,
            "return/best_of_batch": float(good.max()) if good.size else None,
            "return/best": progress.best_return,
            "update/kl": info.kl,
            "update/entropy_drop": info.entropy_drop,
            "update/effective_sample_size": info.effective_sample_size,
            "update/eta": info.eta,
            "update/omega": info.omega,
            "update/temperature": info.temperature,
            "update/failed_episodes": float(info.n_failed),
        }
        if isinstance(optimizer, Optimizer):  # a baseline has no belief, or keeps it to itself
            scalars |= {
                "belief/entropy": optimizer.entropy,
                "belief/smallest_std": float(optimizer.std.min()),
                "belief/largest_std": float(optimizer.std.max()),
            }
        for name, value in scalars.items():
            if value is not None and np.isfinite(value):
                self._writer.add_scalar(name, value, progress.episodes)
        if info.effectiveness is not None:
            self._writer.add_histogram("effectiveness", info.effectiveness, progress.episodes)
        self._writer.flush()  # a run that is killed leaves what it had

    def close(self) -> None:
        """Finish the files."""
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
