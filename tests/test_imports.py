"""Imports point one way, and the quick ones stay quick."""

import ast
import subprocess
import sys
from pathlib import Path

import kinfolk

ROOT = Path(kinfolk.__file__).parent
# From the ground up: a room may import only what stands before it.
ROOMS = [
    "typing", "version", "checks", "progress", "kernels", "network", "objective", "local_models", "engine",
    "algorithms", "theory", "similarity", "datasets", "experiments", "testing", "report", "tables", "cli",
]  # fmt: skip
DOORS = ("__init__", "__main__")  # of the house itself: they may open every room


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


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


def test_the_test_sees_every_kind_of_import():
    assert imported_rooms("import kinfolk") == {"__init__"}
    assert imported_rooms("import kinfolk.cli.jobs as j") == {"cli"}
    assert imported_rooms("from kinfolk import tables, report") == {"tables", "report"}
    assert imported_rooms("from kinfolk.network.site import Site") == {"network"}
    assert imported_rooms("def f():\n    from kinfolk.tables import learn") == {"tables"}
    assert imported_rooms("if TYPE_CHECKING:\n    import kinfolk.engine") == {"engine"}


def test_imports_point_one_way():
    rooms = {path: room_of(path) for path in ROOT.rglob("*.py")}
    assert set(rooms.values()) - set(DOORS) == set(ROOMS)
    upwards = [
        f"{path.relative_to(ROOT)} imports {found}"
        for path, room in rooms.items()
        if room not in DOORS
        for found in sorted(imported_rooms(path.read_text()) - set(ROOMS[: ROOMS.index(room) + 1]))
    ]
    assert upwards == []


def test_help_needs_no_heavy_import():
    code = (
        "import sys, kinfolk.cli; heavy = {'numpy', 'scipy', 'numba', 'sklearn', 'pandas', 'networkx'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_torch_waits_until_it_is_used():
    code = "import sys, kinfolk.experiments; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_every_public_name_exists():
    for name in kinfolk.__all__:
        assert getattr(kinfolk, name) is not None
    assert set(kinfolk.__all__) == set(dir(kinfolk))
