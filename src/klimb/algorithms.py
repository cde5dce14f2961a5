"""The algorithms by the paper's names: each is an update rule and a few settings.

Every recipe also takes the settings of :class:`~klimb.search.Search` by keyword: ``covariance`` ("full" or
"diagonal"), ``effectiveness``, ``n_effective``, ``reduce`` (guided dimensionality reduction) and ``damping``
(prioritized exploration). Defaults are the paper's values for the LQR.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, Unpack

from klimb._validation import lookup, nearest, positive
from klimb.effectiveness import Effectiveness
from klimb.search import Adam, Search
from klimb.updates import (
    ConstrainedRelativeEntropy,
    CrossEntropy,
    ModelBased,
    NaturalGradient,
    PlainGradient,
    RelativeEntropy,
    RewardWeighted,
    Update,
)


class Shape(TypedDict, total=False):
    """What the recipes with a choice of parameters take by keyword besides it."""

    covariance: Literal["full", "diagonal"]
    reduce: bool


class Settings(Shape, total=False):
    """What the other recipes take by keyword."""

    effectiveness: str | Effectiveness | None
    n_effective: int | None
    damping: float


def _search(name: str, update: Update, settings: Settings, **fixed: Any) -> Search:
    """Pearson's correlation measures effectiveness wherever a setting needs one and none is named."""
    unknown = sorted(set(settings) - set(Settings.__annotations__))
    if unknown:
        raise ValueError(
            f"unknown setting {unknown[0]!r} of {name}: {nearest(unknown[0], Settings.__annotations__)}"
        )
    if (
        settings.get("n_effective") is not None
        or settings.get("reduce")
        or settings.get("damping", 1.0) != 1.0
    ):
        settings = {"effectiveness": "pearson", **settings}
    return Search(name, update, **{**settings, **fixed})


def rwr(beta: float = 0.2, **settings: Unpack[Settings]) -> Search:
    """Reward-weighted regression: weights exp(beta J), maximum weighted likelihood."""
    return _search("rwr", RewardWeighted(beta), settings)


def pro(beta: float = 0.2, **settings: Unpack[Settings]) -> Search:
    """Pearson-correlation-based relevance weighted policy optimisation: RWR that explores what matters."""
    return _search("pro", RewardWeighted(beta), {"effectiveness": "pearson", **settings}, soft=True)


def reps(epsilon: float = 0.4, **settings: Unpack[Settings]) -> Search:
    """Relative entropy policy search: weights within epsilon of uniform, maximum weighted likelihood."""
    return _search("reps", RelativeEntropy(epsilon), settings)


def creps(epsilon: float = 4.7, kappa: float = 17.0, **settings: Unpack[Settings]) -> Search:
    """Constrained REPS: the fitted Gaussian itself keeps KL <= epsilon and entropy drop <= kappa."""
    return _search("creps", ConstrainedRelativeEntropy(epsilon, kappa), settings)


def more(epsilon: float = 4.7, kappa: float = 17.0, **settings: Unpack[Settings]) -> Search:
    """Model-based relative entropy search: climbs a quadratic model within both bounds."""
    return _search("more", ModelBased(epsilon, kappa), settings)


def cem(n_elite: int = 25, **settings: Unpack[Settings]) -> Search:
    """Cross-entropy method: refit to the n_elite best episodes; diagonal unless asked otherwise."""
    return _search("cem", CrossEntropy(n_elite), {"covariance": "diagonal", **settings})


def nes(
    learning_rate: float | None = None, covariance_rate: float | None = None, **settings: Unpack[Settings]
) -> Search:
    """Natural evolution strategies: SNES if diagonal (the default), xNES if full; mirrored samples.

    Parameters
    ----------
    learning_rate
        None follows the natural gradient at rate 1, as Wierstra et al. do; a number lets Adam take steps of
        that size in the parameters' units, as the paper's baseline does (0.03 for the LQR).
    covariance_rate
        None takes the usual rate for the number of parameters.
    """
    adam = None if learning_rate is None else Adam(positive("learning_rate", learning_rate))
    rule = NaturalGradient(1.0, covariance_rate)
    return _search("nes", rule, {"covariance": "diagonal", **settings}, mirrored=True, step=adam)


def es(learning_rate: float = 0.3, **settings: Unpack[Settings]) -> Search:
    """Plain evolution strategy: steps along the standardised return, fixed covariance, mirrored samples."""
    rule = PlainGradient(learning_rate)
    return _search("es", rule, {"covariance": "diagonal", **settings}, mirrored=True)


def reps_pe(
    epsilon: float = 0.4,
    n_effective: int | None = None,
    damping: float = 0.9,
    effectiveness: str | Effectiveness = "pearson",
    **shape: Unpack[Shape],
) -> Search:
    """REPS with prioritized exploration: the parameters that matter less are explored less."""
    choice = Settings(n_effective=n_effective, damping=damping, effectiveness=effectiveness)
    return _search("reps-pe", RelativeEntropy(epsilon), {**choice, **shape})


def creps_pe(
    epsilon: float = 4.7,
    kappa: float = 17.0,
    n_effective: int | None = None,
    damping: float = 0.1,
    effectiveness: str | Effectiveness = "pearson",
    **shape: Unpack[Shape],
) -> Search:
    """CREPS with prioritized exploration."""
    choice = Settings(n_effective=n_effective, damping=damping, effectiveness=effectiveness)
    return _search("creps-pe", ConstrainedRelativeEntropy(epsilon, kappa), {**choice, **shape})


def dr_reps(
    epsilon: float = 0.5,
    n_effective: int | None = None,
    damping: float = 0.1,
    effectiveness: str | Effectiveness = "pearson",
    **shape: Unpack[Shape],
) -> Search:
    """DR-REPS: REPS on the effective parameters only, exploring the others less."""
    choice = Settings(n_effective=n_effective, damping=damping, effectiveness=effectiveness, reduce=True)
    return _search("dr-reps", RelativeEntropy(epsilon), {**choice, **shape})


def dr_creps(
    epsilon: float = 4.7,
    kappa: float = 17.0,
    n_effective: int | None = None,
    damping: float = 0.1,
    effectiveness: str | Effectiveness = "pearson",
    **shape: Unpack[Shape],
) -> Search:
    """DR-CREPS, the paper's algorithm: CREPS on the effective parameters only, exploring the others less.

    ``damping=1.0`` is DR-CREPS without prioritized exploration.
    """
    choice = Settings(n_effective=n_effective, damping=damping, effectiveness=effectiveness, reduce=True)
    return _search("dr-creps", ConstrainedRelativeEntropy(epsilon, kappa), {**choice, **shape})


@dataclass(frozen=True)
class Algorithm:
    """An entry of the list of algorithms.

    Attributes
    ----------
    recipe
        Makes the search from its settings.
    batch
        Episodes per update that suit it; the paper's number for the LQR where it has one.
    reference
        Where it was published.
    """

    recipe: Callable[..., Search]
    batch: int
    reference: str

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return (inspect.getdoc(self.recipe) or "").splitlines()[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name with their defaults."""
        own = {
            name: parameter.default
            for name, parameter in inspect.signature(self.recipe).parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        made = self.recipe()
        return own | {name: getattr(made, name) for name in Settings.__annotations__ if name not in own}


ALGORITHMS: dict[str, Algorithm] = {
    "rwr": Algorithm(rwr, 25, "Peters & Schaal 2007"),
    "pro": Algorithm(pro, 25, "Ewerton et al. 2019"),
    "reps": Algorithm(reps, 25, "Peters, Mülling & Altun 2010"),
    "reps-pe": Algorithm(reps_pe, 25, "Memmel et al. 2022"),
    "creps": Algorithm(creps, 150, "Abdolmaleki et al. 2017"),
    "creps-pe": Algorithm(creps_pe, 150, "Memmel et al. 2022"),
    "more": Algorithm(more, 250, "Abdolmaleki et al. 2015"),
    "cem": Algorithm(cem, 50, "Rubinstein 1999"),
    "nes": Algorithm(nes, 100, "Wierstra et al. 2014"),
    "es": Algorithm(es, 100, "Rechenberg 1973; Salimans et al. 2017"),
    "dr-reps": Algorithm(dr_reps, 50, "Memmel et al. 2022"),
    "dr-creps": Algorithm(dr_creps, 50, "Memmel et al. 2022"),
}


def make_algorithm(name: str, **settings: Any) -> Search:
    """Make an algorithm by its name, ``klimb list algorithms``; unknown settings raise a ValueError."""
    algorithm = lookup("algorithm", name, ALGORITHMS)
    for setting in settings:
        if setting not in algorithm.settings:
            raise ValueError(f"unknown setting {setting!r} of {name}: {nearest(setting, algorithm.settings)}")
    return algorithm.recipe(**settings)
