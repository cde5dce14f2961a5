"""Episodic black-box policy search that finds out which parameters matter."""

from klimb.algorithms import (
    auto,
    cem,
    creps,
    creps_pe,
    dr_creps,
    dr_reps,
    es,
    make_algorithm,
    more,
    nes,
    pro,
    reps,
    reps_pe,
    rwr,
)
from klimb.check import check_task
from klimb.evaluation import Workers
from klimb.gaussian import Gaussian
from klimb.optimizer import Optimizer, Progress, Result, maximize
from klimb.search import Search
from klimb.study import Episode, Study, StudyError
from klimb.tasks import Task, make_task, task_from_function
from klimb.tensorboard import TensorBoard
from klimb.updates import UpdateInfo

__version__ = "0.1.0"

__all__ = [
    "Episode",
    "Gaussian",
    "Optimizer",
    "Progress",
    "Result",
    "Search",
    "Study",
    "StudyError",
    "Task",
    "TensorBoard",
    "UpdateInfo",
    "Workers",
    "auto",
    "cem",
    "check_task",
    "creps",
    "creps_pe",
    "dr_creps",
    "dr_reps",
    "es",
    "make_algorithm",
    "make_task",
    "maximize",
    "more",
    "nes",
    "pro",
    "reps",
    "reps_pe",
    "rwr",
    "task_from_function",
]
