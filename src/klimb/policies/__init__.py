"""Policies: what turns a parameter vector into a robot's actions.

Each is a frozen dataclass of settings; see :class:`klimb.policies.policy.Policy` for what all of them offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from klimb._validation import lookup, nearest
from klimb.policies.dmp import DMP
from klimb.policies.linear import Linear, observation_statistics
from klimb.policies.policy import OpenLoopPolicy, Policy
from klimb.policies.promp import ProMP
from klimb.policies.tiles import Tiles

POLICIES: Mapping[str, type[Linear] | type[Tiles] | type[ProMP] | type[DMP]] = {
    "linear": Linear,
    "tiles": Tiles,
    "promp": ProMP,
    "dmp": DMP,
}

__all__ = [
    "DMP",
    "POLICIES",
    "Linear",
    "OpenLoopPolicy",
    "Policy",
    "ProMP",
    "Tiles",
    "make_policy",
    "observation_statistics",
]


def make_policy(name: str, **settings: Any) -> Policy:
    """Build a policy by its name, for example ``make_policy("promp", n_joints=3, n_bases=30, horizon=120)``.

    Parameters
    ----------
    name
        One of :data:`POLICIES`.
    **settings
        The fields of that policy's class.
    """
    policy = lookup("policy", name, POLICIES)
    known = {field.name: field.default is MISSING for field in fields(policy)}
    for setting in settings:
        if setting not in known:
            raise ValueError(f"policy {name!r} has no setting {setting!r}: {nearest(setting, known)}")
    missing = [setting for setting, required in known.items() if required and setting not in settings]
    if missing:
        raise ValueError(f"policy {name!r} needs a value for {', '.join(missing)}.")
    return policy(**settings)
