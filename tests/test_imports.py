"""Imports point one way, and the quick ones stay quick."""

import ast
import subprocess
import sys
from pathlib import Path

import kinfolk

ROOT = Path(kinfolk.__file__).parent
# From the ground up: a module may import only what stands before it.
ORDER = [
    "typing", "checks", "graph", "graphs", "data", "public", "network", "kernels", "site", "node_loss", "bound",
    "losses", "torch_loss", "couplings", "models", "program", "certify", "recovery", "direct", "polish", "algorithms",
    "similarity", "engines",
    "progress", "run", "selection", "datasets", "experiments", "testing", "table", "report", "cli",
]  # fmt: skip


def imported_modules(path: Path) -> set[str]:
    """Top-level kinfolk modules that a file imports when it runs (not those for type checking only)."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kinfolk"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_imports_point_one_way():
    modules = {p: p.relative_to(ROOT).parts[0].removesuffix(".py") for p in ROOT.rglob("*.py")}
    assert set(modules.values()) - {"__init__", "__main__"} == set(ORDER)
    for path, module in modules.items():
        if module in ("__init__", "__main__"):
            continue
        allowed = set(ORDER[: ORDER.index(module) + 1])
        assert imported_modules(path) <= allowed, f"{path.name} looks up"


def test_engines_and_run_know_no_algorithm():
    for path in [ROOT / "run.py", *(ROOT / "engines").glob("*.py")]:
        assert "algorithms" not in imported_modules(path)


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
    assert set(kinfolk.__all__) < set(dir(kinfolk))
