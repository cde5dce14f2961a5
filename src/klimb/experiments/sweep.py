"""The paper's hyper-parameter sweep of one variant: its grid as a figure of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from klimb.experiments.plan import Figure, Variant, sweep_of
from klimb.experiments.reproduce import column
from klimb.experiments.store import Entry


class Score(NamedTuple):
    """How well a point of the grid did: return under the belief at the end, mean and error over seeds."""

    name: str
    settings: dict[str, object]
    batch: int
    end: float
    error: float
    average: float
    """Mean over all epochs: who learns faster has more."""
    seeds: int


def sweep_figure(figure: Figure, variant: Variant) -> Figure:
    """The grid as a figure, so that its runs are done, kept and found again like any others."""
    return replace(
        figure, name=f"sweep-{figure.name}-{variant.name}", variants=tuple(sweep_of(figure, variant))
    )


def ranked(figure: Figure, entries: Sequence[Entry]) -> list[Score]:
    """The points of the grid, the best first."""
    by_name: dict[str, list[Entry]] = {}
    for entry in entries:
        by_name.setdefault(entry.variant, []).append(entry)
    scores = []
    for variant in figure.variants:
        episodes, values = column(by_name.get(variant.name, []), variant.name, "belief_return")
        if not episodes.size:
            continue
        ends = values[:, -1]
        count = ends.size
        error = float(ends.std(ddof=1) / np.sqrt(count)) if count > 1 else float("nan")
        scores.append(
            Score(
                variant.name,
                variant.settings,
                variant.batch,
                float(ends.mean()),
                error,
                float(np.nanmean(values)),
                count,
            )
        )
    return sorted(scores, key=lambda score: -score.end)
