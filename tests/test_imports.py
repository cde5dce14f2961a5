"""Imports point one way, and importing klimb stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "klimb"

# Each line may import from the lines above it and from itself.
ORDER = [
    {"_validation", "_blas", "_crew", "_processes"},
    {"gaussian"},
    {"_neighbours", "weighting", "fitting", "effectiveness", "more"},
    {"updates"},
    {"state"},
    {"surrogate"},
    {"search"},
    {"algorithms"},
    {"optimizer"},
]
# These stand beside that order and import only what is named here.
BESIDE = {
    "study": {
        *("_validation", "_blas", "effectiveness", "gaussian", "updates", "search", "algorithms"),
        *("optimizer", "study", "tasks", "baselines"),
    },
    "tensorboard": {"optimizer"},
    "_command": set(),
    "study_cli": {
        *{"_validation", "_command", "algorithms", "optimizer", "report", "study", "tasks", "baselines"},
    },
    "tasks": {"_validation", "tasks", "policies"},
    "evaluation": {"_crew", "_processes", "_validation", "__version__", "evaluation", "tasks"},
    "check": {"_validation", "tasks"},
    "paper": {"algorithms"},
    "policies": {"_validation", "tasks", "policies"},
    "report": {"_validation", "report"},
    "dashboard": {"_command", "optimizer", "study", "policies", "tasks", "report", "dashboard"},
    "dashboard_cli": {"_command", "study_cli", "dashboard"},
    "baselines": {
        *{"_validation", "_blas", "gaussian", "updates", "algorithms", "optimizer"},
        *{"tasks", "policies", "baselines"},
    },
    "experiments": set().union(*ORDER, {"__version__", "tasks", "baselines", "experiments", "report"}),
}
LAST = {"klimb", "__main__", "cli", "experiments_cli"}  # these may import anything

HEAVY = ["numba", "matplotlib", "typer", "mujoco", "sklearn", "torch", "stable_baselines3", "cma", "ray"]
HEAVY += ["starlette"]

FILES = sorted(SOURCE.rglob("*.py"))


def part(module):
    """The part of klimb that a module such as klimb.tasks.lqr belongs to: tasks."""
    return module.split(".")[1] if "." in module else module


def module_of(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_parts(path):
    """Parts of klimb that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            names = [node.module]
            if node.module == "klimb":
                names = [f"klimb.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {part(name) for name in names if name.split(".")[0] == "klimb"}
    return found


def allowed(name):
    if name in BESIDE:
        return BESIDE[name]
    above = set()
    for line in ORDER:
        above |= line
        if name in line:
            return above
    raise AssertionError(f"{name} is new: give it a place in the order of imports in this file")


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_imports_point_one_way(path):
    name = part(module_of(path))
    if name not in LAST:
        assert imported_parts(path) <= allowed(name)


def test_import_of_klimb_is_light():
    code = f"import sys, klimb; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_neither_numba_nor_matplotlib():
    code = "import sys, klimb.cli; print([name for name in ('numba', 'matplotlib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
