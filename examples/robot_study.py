"""A robot that breaks down in the middle, and a study that does not lose an episode.

The same from a shell, or from any language that can start a program:

    klimb study create arm.db --names shoulder,elbow,wrist --low -2 --high 2 --batch 10 --repeats 2
    klimb study ask arm.db --json --reissue-after 0
    klimb study tell arm.db 1 --return -3.2
    klimb study status arm.db
"""

import tempfile
from pathlib import Path

import numpy as np

import klimb

NAMES = ["shoulder", "elbow", "wrist"]


class MotorFaultError(Exception):
    """What your robot's driver raises."""


def run_robot(episode: klimb.Episode) -> float:
    """Your robot: the wrist does not matter, the elbow does most, and one episode in ten goes wrong."""
    rng = np.random.default_rng(episode.seed)
    if rng.random() < 0.1:
        raise MotorFaultError("motor fault")
    shoulder, elbow, _ = episode.parameters
    return float(-((shoulder - 1.0) ** 2) - 5 * (elbow + 0.5) ** 2 + 0.1 * rng.standard_normal())


def session(path: Path, episodes: int) -> None:
    """What runs beside the robot; start it again whenever it was stopped."""
    with klimb.Study(path) as study:
        for _ in range(episodes):
            episode = study.ask(reissue_after=0)  # one robot: what has not come back is lost
            try:
                study.tell(episode, run_robot(episode), extra={"battery": 0.9})
            except MotorFaultError as fault:
                study.fail(episode, str(fault))


with tempfile.TemporaryDirectory() as directory:
    path = Path(directory) / "arm.db"
    algorithm = klimb.creps_pe(epsilon=1.0, kappa=2.0, n_effective=2)
    klimb.Study.create(path, algorithm, names=NAMES, low=-2, high=2, batch=10, repeats=2, seed=0).close()
    session(path, 130)  # then the power fails
    session(path, 270)
    with klimb.Study(path) as study:
        status = study.status()
        print(f"{status.done} episodes, {status.failed} failed, {status.updates} updates")
        print("what matters:", ", ".join(f"{name} {value:.2f}" for name, value in status.matters))
        print("use:", dict(zip(study.names, status.mean.round(2).tolist(), strict=True)))
