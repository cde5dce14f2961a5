"""What the paper compares with, and what users would pick instead.

Two kinds. Searches over parameter vectors, which learn by ask and tell as klimb's own do
(:mod:`klimb.baselines.conversation`): CMA-ES in three forms, CR-FM-NES, Nelder-Mead, L-BFGS, random search
and ARS V1. And learners that act step by step in an environment (:mod:`klimb.baselines.training`): PPO, TRPO,
REINFORCE and ARS V2. Both are listed in :data:`klimb.algorithms.BASELINES` and made by
``klimb.make_algorithm``; the first kind is run by ``klimb.maximize``, the second by :func:`train`, and
``klimb run`` runs all.

Nothing heavy is imported here: torch, stable-baselines3 and cma load when a run starts.
"""

from klimb.baselines.conversation import Baseline, Conversation, load
from klimb.baselines.training import Stepwise, Trained, first_policy, train

__all__ = ["Baseline", "Conversation", "Stepwise", "Trained", "first_policy", "load", "train"]
