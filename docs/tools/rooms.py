"""The rooms of the package, from the ground up, and which of them a file imports from.

The one place with their order: a test checks that imports heed it, and ``import_graph.py`` draws it.
"""

from __future__ import annotations

import ast
from pathlib import Path

HOUSE = Path(__file__).parents[2] / "src" / "kinfolk"

# From the ground up: a room may import only what stands before it.
ROOMS = {
    "typing": "names of array types",
    "version": "one number",
    "checks": "refuses bad input",
    "progress": "a progress bar",
    "kernels": "compiled loops",
    "network": "who sees what",
    "modules": "one layer for torch",
    "objective": "what is minimised",
    "local_models": "any model at a node",
    "engine": "the round loop",
    "algorithms": "one file per method",
    "theory": "what is guaranteed",
    "similarity": "graphs from data",
    "datasets": "real and synthetic data",
    "experiments": "figures of the papers",
    "report": "the page of a run",
    "tables": "the main job",
    "testing": "checks for your classes",
    "tracking": "MLflow, TensorBoard",
    "serving": "predictions over HTTP",
    "federation": "sites beside their data",
    "cli": "the commands",
}
DOORS = ("__init__", "__main__")  # of the house itself: they may open every room


def room_of(path: Path) -> str:
    """The room that a file of the package stands in."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imported_rooms(source: str) -> set[str]:
    """The rooms that a file imports from: at its top, in a function, or for type checking only."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {[*name.split("."), "__init__"][1] for name in named if name.split(".")[0] == "kinfolk"}
    return found


def import_arrows() -> dict[str, set[str]]:
    """For every room, the other rooms that it imports from."""
    arrows: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in sorted(HOUSE.rglob("*.py")):
        if room_of(path) not in DOORS:
            arrows[room_of(path)] |= imported_rooms(path.read_text(encoding="utf-8")) - {room_of(path)}
    return arrows
