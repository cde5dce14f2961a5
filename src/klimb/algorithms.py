"""The algorithms by the paper's names: each is an update rule and a few settings.

Every recipe also takes the settings of :class:`~klimb.search.Search` by keyword: ``covariance`` ("full" or
"diagonal"), ``effectiveness``, ``n_effective``, ``reduce`` (guided dimensionality reduction), ``damping``
(prioritized exploration) and ``reuse`` (of earlier episodes). Defaults are the paper's values for the LQR.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
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
    RelevanceSurrogate,
    RewardWeighted,
    Update,
)


class Shape(TypedDict, total=False):
    """What the recipes with a choice of parameters take by keyword besides it."""

    covariance: Literal["full", "diagonal"]
    reduce: bool
    reuse: int


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


def auto(covariance: Literal["full", "diagonal"] | None = None, reuse: int | None = None) -> Search:
    """Klimb's own search: a quadratic surrogate that learns which parameters matter; nothing to tune.

    Where the returns get no better, or in noise where the landscape is rough, it looks around, closes in on
    what that has told, and so on for as long as there are episodes. The optimizer's belief and mean stay
    those of the best search until there is something better.

    Parameters
    ----------
    covariance
        None takes "full" up to 1000 parameters and "diagonal" beyond.
    reuse
        How many of the latest earlier episodes the surrogate rests on besides the new ones; None takes twice
        the number of parameters, from 200 to 1000, and in noise 400 for up to 26 parameters.
    """
    return Search("auto", RelevanceSurrogate(), covariance, mirrored=True, reuse=reuse)


@dataclass(frozen=True)
class Algorithm:
    """An entry of the list of algorithms.

    Attributes
    ----------
    recipe
        Makes the search from its settings: a function, or "module:name" to import it from when needed.
    batch
        Episodes per update that suit it; the paper's number for the LQR where it has one. None: it depends on
        the number of parameters.
    reference
        Where it was published.
    extra
        What to install besides klimb: ``pip install 'klimb[extra]'``. None: nothing.
    """

    recipe: str | Callable[..., Any]
    batch: int | None
    reference: str
    extra: str | None = None

    def load(self) -> Callable[..., Any]:
        """Return the recipe, imported if need be."""
        if not isinstance(self.recipe, str):
            return self.recipe
        module, _, name = self.recipe.partition(":")
        recipe: Callable[..., Any] = getattr(import_module(module), name)
        return recipe

    @property
    def missing(self) -> str | None:
        """What to say if its extra is not installed."""
        absent = [module for module in EXTRAS.get(self.extra or "", ()) if find_spec(module) is None]
        if not absent:
            return None
        return f"needs {', '.join(absent)}: pip install 'klimb[{self.extra}]'"

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return (inspect.getdoc(self.load()) or "").splitlines()[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Settings by name with their defaults."""
        recipe = self.load()
        parameters = inspect.signature(recipe).parameters
        own = {
            name: parameter.default
            for name, parameter in parameters.items()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        }
        made = recipe()
        if len(own) == len(parameters):
            return own
        return own | {name: getattr(made, name) for name in Settings.__annotations__ if name not in own}


ALGORITHMS: dict[str, Algorithm] = {
    "auto": Algorithm(auto, None, "klimb; docs/algorithms/auto.md"),
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


#: Modules that the extras install.
EXTRAS: dict[str, tuple[str, ...]] = {
    "deep": ("torch", "stable_baselines3", "sb3_contrib"),
    "peers": ("cma",),
}

#: What klimb did not invent, listed by place: see :mod:`klimb.baselines`.
BASELINES: dict[str, Algorithm] = {
    "cma-es": Algorithm(
        "klimb.baselines.evolution:cma_es", None, "Hansen & Ostermeier 2001; pycma", extra="peers"
    ),
    "sep-cma": Algorithm(
        "klimb.baselines.evolution:sep_cma", None, "Ros & Hansen 2008; pycma", extra="peers"
    ),
    "vkd-cma": Algorithm(
        "klimb.baselines.evolution:vkd_cma", None, "Akimoto & Hansen 2016; pycma", extra="peers"
    ),
    "cr-fm-nes": Algorithm("klimb.baselines.cr_fm_nes:cr_fm_nes", None, "Nomura & Ono 2022"),
    "nelder-mead": Algorithm("klimb.baselines.classic:nelder_mead", 50, "Nelder & Mead 1965; scipy"),
    "l-bfgs": Algorithm("klimb.baselines.classic:l_bfgs", 50, "Byrd et al. 1995; scipy"),
    "random-search": Algorithm("klimb.baselines.random_search:random_search", 50, "Brooks 1958"),
    "ars": Algorithm("klimb.baselines.random_search:ars", 32, "Mania, Guy & Recht 2018"),
    "ppo": Algorithm(
        "klimb.baselines.deep:ppo", 100, "Schulman et al. 2017; stable-baselines3", extra="deep"
    ),
    "trpo": Algorithm("klimb.baselines.deep:trpo", 100, "Schulman et al. 2015; sb3-contrib", extra="deep"),
    "reinforce": Algorithm("klimb.baselines.reinforce:reinforce", 100, "Williams 1992"),
}


def make_algorithm(name: str, **settings: Any) -> Any:
    """Make an algorithm by its name, ``klimb list algorithms``; unknown settings raise a ValueError.

    Returns
    -------
    Search, or a baseline
        All but ppo, trpo, reinforce and ars with ``version="v2-t"`` are run by :func:`klimb.maximize`; these
        by :func:`klimb.baselines.train`.

    Raises
    ------
    ImportError
        If the baseline's extra is not installed.
    """
    algorithm = lookup("algorithm", name, ALGORITHMS | BASELINES)
    if algorithm.missing:
        raise ImportError(f"{name} {algorithm.missing}")
    for setting in settings:
        if setting not in algorithm.settings:
            having = [other for other, entry in ALGORITHMS.items() if setting in entry.settings]
            hint = f" It is a setting of {', '.join(having)}." if having else ""
            raise ValueError(
                f"unknown setting {setting!r} of {name}: {nearest(setting, algorithm.settings)}{hint}"
            )
    return algorithm.load()(**settings)
