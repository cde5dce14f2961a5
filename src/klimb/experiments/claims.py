"""What the paper claims, as data (claims.toml), and a verdict for each from the results files.

A claim compares numbers of runs: a column at a number of episodes (interpolated between epochs), at the end,
or on average over the episodes. Its statistic is a mean or a difference of means over seeds; its interval is
the 95 % percentile bootstrap over seeds, each variant's seeds drawn by themselves. A claim holds if the whole
interval says so, does not hold if the whole interval says the contrary, and is undecided in between.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from klimb._validation import FloatArray, lookup
from klimb.experiments.plan import Figure, check_keys, load_figure
from klimb.experiments.reproduce import column
from klimb.experiments.store import Entry, check_current, read_results, results_path
from klimb.report.figures import FEW_SAMPLES
from klimb.tasks import make_task

HOLDS, DOES_NOT, UNDECIDED, NO_DATA = "holds", "does not hold", "undecided", "no data"

RESAMPLES = 10_000
SEED = 0
LEVEL = 0.95
GRID = 201  # places at which a curve is averaged

At = int | str  # episodes, "end" or "average"


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes
    ----------
    id, sentence
        What is claimed, in klimb's words.
    figure
        Whose results decide.
    kind
        A name of :data:`KINDS`.
    who, against
        Variants; every one of `who` is compared with every one of `against`.
    pairs
        Or these pairs of variants.
    metric
        Column of the results; larger is better.
    at
        Where: numbers of episodes, "end" or "average".
    margin
        By how much to be better, or how far apart to be still on a par.
    level
        To reach or to stay below.
    """

    id: str
    sentence: str
    figure: str
    kind: str
    who: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()
    metric: str = "belief_return"
    at: tuple[At, ...] = ("end",)
    margin: float = 0.0
    level: float = 0.0


@dataclass(frozen=True)
class Part:
    """One comparison of a claim, in numbers and in words."""

    verdict: str
    detail: str
    who: str = ""
    against: str = ""
    at: At = "end"
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """A claim, its comparisons, and what follows from them."""

    claim: Claim
    parts: list[Part] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """The least favourable of the comparisons that there are data for."""
        found = {part.verdict for part in self.parts}
        return next((name for name in (DOES_NOT, UNDECIDED, HOLDS) if name in found), NO_DATA)

    @property
    def complete(self) -> bool:
        """Whether there are data for all comparisons."""
        return all(part.verdict != NO_DATA for part in self.parts)

    @property
    def words(self) -> str:
        """The verdict, and whether it rests on a part of the comparisons only."""
        return self.verdict if self.complete or self.verdict == NO_DATA else f"{self.verdict} (in part)"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.claim.id,
            "verdict": self.verdict,
            "complete": self.complete,
            **{name: value for name, value in asdict(self.claim).items() if name != "id"},
            "parts": [asdict(part) for part in self.parts],
        }


class Data:
    """The runs of one figure, asked for numbers."""

    def __init__(self, figure: Figure, entries: Sequence[Entry]) -> None:
        self.figure = figure
        self.entries = entries
        self.by_variant: dict[str, list[Entry]] = {}
        for entry in entries:
            self.by_variant.setdefault(entry.variant, []).append(entry)

    def label(self, variant: str) -> str:
        """How the variant is called in the figure; with its panel, where there are several."""
        found = self.figure.variant(variant)
        return f"{found.label} ({found.panel})" if found.panel else found.label

    def curve(self, variant: str, metric: str) -> tuple[FloatArray, FloatArray]:
        """Episodes (k,) and values (seeds, k)."""
        return column(self.by_variant.get(variant, []), variant, metric)

    def values(self, variants: Sequence[str], metric: str, at: At) -> list[FloatArray]:
        """A number per seed for each of the variants, empty where there are no runs."""
        curves = [self.curve(variant, metric) for variant in variants]
        shortest = min((episodes[-1] for episodes, _ in curves if episodes.size), default=0.0)
        return [_read(episodes, values, at, shortest) for episodes, values in curves]

    @property
    def optimum(self) -> float | None:
        """The best possible return."""
        return make_task(self.figure.task, **self.figure.options).optimum


def _read(episodes: FloatArray, values: FloatArray, at: At, shortest: float) -> FloatArray:
    if not episodes.size:
        return np.empty(0)
    if at == "end":
        return np.array(values[:, -1])
    places = np.linspace(0, shortest, GRID) if at == "average" else np.array([float(at)])
    return np.array([np.interp(places, episodes, row).mean() for row in values])


def bootstrap(statistic: Callable[..., Any], *groups: FloatArray) -> tuple[float, float, float]:
    """A statistic of means, and its 95 % interval over seeds.

    Parameters
    ----------
    statistic
        Takes the mean of each group, or arrays of such means.
    *groups
        (seeds,) each; resampled independently.
    """
    rng = np.random.default_rng(SEED)
    means = []
    for group in groups:
        drawn = rng.integers(group.size, size=(RESAMPLES, group.size))
        means.append(group[drawn].mean(axis=1))
    low, high = np.quantile(statistic(*means), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(statistic(*(group.mean() for group in groups))), float(low), float(high)


def above(low: float, high: float, threshold: float) -> str:
    """Verdict on "more than the threshold"."""
    if low > threshold:
        return HOLDS
    return DOES_NOT if high < threshold else UNDECIDED


def within(low: float, high: float, margin: float) -> str:
    """Verdict on "no further from 0 than the margin"."""
    if -margin < low and high < margin:
        return HOLDS
    return DOES_NOT if low > margin or high < -margin else UNDECIDED


def opposite(verdict: str) -> str:
    """Verdict on the contrary."""
    return {HOLDS: DOES_NOT, DOES_NOT: HOLDS}.get(verdict, verdict)


# ------------------------------------------------------------------------------------------ kinds of claims


def _pairs(claim: Claim) -> list[tuple[str, str]]:
    return [*claim.pairs, *((who, against) for who in claim.who for against in claim.against)]


def _compare(claim: Claim, data: Data, decide: Callable[[float, float], str]) -> Iterable[Part]:
    for who, against in _pairs(claim):
        for at in claim.at:
            first, second = data.values([who, against], claim.metric, at)
            labels = data.label(who), data.label(against)
            missing = [label for label, group in zip(labels, (first, second), strict=True) if not group.size]
            if missing:
                yield Part(NO_DATA, f"no runs of {' and '.join(missing)}", who, against, at)
                continue
            estimate, low, high = bootstrap(lambda a, b: a - b, first, second)
            detail = (
                f"{labels[0]} {first.mean():.4g}, {labels[1]} {second.mean():.4g} {_where(at)}: "
                f"difference {_interval(estimate, low, high)}, {first.size} and {second.size} seeds"
            )
            seeds = (first.size, second.size)
            yield Part(decide(low, high), detail, who, against, at, estimate, low, high, seeds)


def _better(claim: Claim, data: Data) -> Iterable[Part]:
    """Each of `who` has more than each of `against`, by more than the margin."""
    return _compare(claim, data, lambda low, high: above(low, high, claim.margin))


def _at_least(claim: Claim, data: Data) -> Iterable[Part]:
    """Not less, but for the margin."""
    return _compare(claim, data, lambda low, high: above(low, high, -claim.margin))


def _on_par(claim: Claim, data: Data) -> Iterable[Part]:
    """Neither more nor less, but for the margin."""
    return _compare(claim, data, lambda low, high: within(low, high, claim.margin))


def _each(
    claim: Claim, data: Data, at: At, measure: Callable[[str], FloatArray], what: str, below: bool
) -> Iterable[Part]:
    """Compare the mean of a measure of each of `who` with the level."""
    for who in claim.who:
        values = measure(who)
        label = data.label(who)
        if not values.size:
            yield Part(NO_DATA, f"no runs of {label}", who, at=at)
            continue
        estimate, low, high = bootstrap(lambda a: a, values)
        verdict = above(low, high, claim.level)
        sign = "<" if below else ">"
        detail = (
            f"{label}: {what} {_interval(estimate, low, high)} (claimed {sign} {claim.level:g}), "
            f"{values.size} seeds"
        )
        verdict = opposite(verdict) if below else verdict
        yield Part(verdict, detail, who, "", at, estimate, low, high, (values.size,))


def _level(claim: Claim, data: Data, below: bool) -> Iterable[Part]:
    for at in claim.at:

        def measure(who: str, at: At = at) -> FloatArray:
            return data.values([who], claim.metric, at)[0]

        yield from _each(claim, data, at, measure, f"{claim.metric} {_where(at)}", below)


def _reaches(claim: Claim, data: Data) -> Iterable[Part]:
    """More than the level."""
    return _level(claim, data, below=False)


def _stays_below(claim: Claim, data: Data) -> Iterable[Part]:
    """Less than the level."""
    return _level(claim, data, below=True)


def _progress(claim: Claim, data: Data, below: bool) -> Iterable[Part]:
    """Share of the way from `at` to the optimum that is made until the end."""
    optimum = data.optimum
    assert optimum is not None, f"{claim.id}: the optimum of {data.figure.task} is not known"
    for at in claim.at:

        def measure(who: str, at: At = at) -> FloatArray:
            then, end = (data.values([who], claim.metric, place)[0] for place in (at, "end"))
            # the share of the mean gap: that of each seed may divide by nearly nothing
            return (end - then) / (optimum - then).mean() if then.size else then

        what = f"share of the remaining way to the optimum made after {at} episodes"
        yield from _each(claim, data, at, measure, what, below)


def _stalls(claim: Claim, data: Data) -> Iterable[Part]:
    """From `at` to the end it makes less than the share `level` of what is left to the optimum."""
    return _progress(claim, data, below=True)


def _goes_on(claim: Claim, data: Data) -> Iterable[Part]:
    """The contrary."""
    return _progress(claim, data, below=False)


def _lead_remains(claim: Claim, data: Data) -> Iterable[Part]:
    """`who` leads the second of `against` too, by some share of its lead over the first."""
    who, (usual, equal) = claim.who[0], claim.against
    for at in claim.at:
        groups = data.values([who, usual, equal], claim.metric, at)
        if any(not group.size for group in groups):
            yield Part(NO_DATA, f"no runs {_where(at)}", who, equal, at)
            continue
        a, b, c = groups
        _, low, high = bootstrap(lambda a, c: a - c, a, c)
        verdict = above(low, high, 0.0)
        lead = float(a.mean() - b.mean())
        rest = float(a.mean() - c.mean())
        seeds = tuple(group.size for group in groups)
        detail = (
            f"{data.label(who)} {a.mean():.4g} leads {data.label(usual)} {b.mean():.4g} by {lead:.3g} and "
            f"{data.label(equal)} {c.mean():.4g} by {_interval(rest, low, high)} {_where(at)}"
        )
        if bootstrap(lambda a, b: a - b, a, b)[1] > 0:
            detail += f": {rest / lead:.0%} of the lead remains"
        detail += f", {a.size}, {b.size} and {c.size} seeds"
        yield Part(verdict, detail, who, equal, at, rest, low, high, seeds)


def _no_failures(claim: Claim, data: Data) -> Iterable[Part]:
    """No update of any run lost positive definiteness."""
    failed = sum(np.nansum(entry.numbers("failed_update")) > 0 for entry in data.entries)
    updates = sum(len(entry.table.rows) - 1 for entry in data.entries)
    runs = len(data.entries)
    yield Part(
        DOES_NOT if failed else HOLDS,
        f"{failed} of {runs} runs failed, in {updates} updates",
        estimate=failed / runs,
        seeds=(runs,),
    )


def _stablest(claim: Claim, data: Data) -> Iterable[Part]:
    """The estimator `who` has less error, or varies less with the number of samples, than the others."""
    measured: dict[str, list[float]] = {}
    for entry in data.entries:
        names = np.array(entry.column("estimator"))
        few = entry.numbers("samples") <= FEW_SAMPLES
        error = entry.numbers("estimate") - entry.numbers("analytic")
        for name in (*claim.who, *claim.against):
            mine = error[(names == name) & few]
            value = np.abs(mine).mean() if claim.metric == "error" else np.abs(np.diff(mine)).mean()
            measured.setdefault(name, []).append(float(value))
    for who, against in _pairs(claim):
        first, second = (np.array(measured[name]) for name in (who, against))
        # the same samples went to both, so it is the difference per seed that counts
        estimate, low, high = bootstrap(lambda a: a, second - first)
        detail = (
            f"{claim.metric} of {who} {first.mean():.3g}, of {against} {second.mean():.3g} up to "
            f"{FEW_SAMPLES} samples: difference {_interval(estimate, low, high)}, {first.size} seeds"
        )
        yield Part(
            above(low, high, 0.0), detail, who, against, FEW_SAMPLES, estimate, low, high, (first.size,)
        )


KINDS: dict[str, Callable[[Claim, Data], Iterable[Part]]] = {
    "better": _better,
    "at-least": _at_least,
    "on-par": _on_par,
    "reaches": _reaches,
    "stays-below": _stays_below,
    "stalls": _stalls,
    "goes-on": _goes_on,
    "lead-remains": _lead_remains,
    "no-failures": _no_failures,
    "stablest": _stablest,
}


def _where(at: At) -> str:
    if isinstance(at, int):
        return f"at {at} episodes"
    return {"end": "at the end", "average": "on average over the episodes"}[at]


def _interval(estimate: float, low: float, high: float) -> str:
    return f"{estimate:.3g} [{low:.3g}, {high:.3g}]".replace("-", "\N{MINUS SIGN}")


# ------------------------------------------------------------------------------------------------ all of them


def load_claims(only: Iterable[str] = ()) -> list[Claim]:
    """The paper's claims; only those of these names, if any are given."""
    text = (resources.files("klimb.experiments") / "claims.toml").read_text("utf-8")
    claims = parse_claims(text)
    known = {claim.id: claim for claim in claims}
    chosen = [lookup("claim", name, known) for name in only]
    return chosen or claims


def parse_claims(text: str) -> list[Claim]:
    """Claims from TOML; raises a ValueError for what a claim does not have, and for unknown variants."""
    table = tomllib.loads(text)
    check_keys("the claims", table, ["claim"], ["claim"])
    figures: dict[str, Figure] = {}
    claims = []
    for entry in table["claim"]:
        where = f"claim {entry.get('id', '?')!r}"
        check_keys(where, entry, Claim.__dataclass_fields__, ["id", "sentence", "figure", "kind"])
        lookup(f"kind of {where}", entry["kind"], KINDS)
        plain = dict(entry)
        for name in ("who", "against", "at"):
            if name in plain:
                value = plain[name]
                plain[name] = tuple(value) if isinstance(value, list) else (value,)
        plain["pairs"] = tuple((first, second) for first, second in plain.get("pairs", []))
        claim = Claim(**plain)
        if claim.figure not in figures:
            figures[claim.figure] = load_figure(claim.figure)
        if claim.kind not in ("stablest", "no-failures"):
            for name in (*claim.who, *claim.against, *(name for pair in claim.pairs for name in pair)):
                figures[claim.figure].variant(name)
        for at in claim.at:
            if not isinstance(at, int) and at not in ("end", "average"):
                raise ValueError(f"at of {where} must be a number of episodes, end or average, not {at!r}.")
        claims.append(claim)
    return claims


def judge_all(claims: Iterable[Claim], results: Path) -> list[Verdict]:
    """A verdict for every claim; raises a ValueError for results that are damaged or of other settings."""
    data: dict[str, Data | None] = {}
    verdicts = []
    for claim in claims:
        if claim.figure not in data:
            data[claim.figure] = load_data(load_figure(claim.figure), results)
        verdicts.append(judge(claim, data[claim.figure]))
    return verdicts


def load_data(figure: Figure, results: Path) -> Data | None:
    """The runs of a figure, or None if there is no results file."""
    path = results_path(results, figure.name)
    if not path.exists():
        return None
    entries = read_results(path)
    check_current(figure, path, entries)
    return Data(figure, entries)


def judge(claim: Claim, data: Data | None) -> Verdict:
    """Judge one claim."""
    if data is None:
        return Verdict(claim, [Part(NO_DATA, f"no results: klimb reproduce {claim.figure}")])
    return Verdict(claim, list(KINDS[claim.kind](claim, data)))
