"""Imports point one way, and the quick ones stay quick."""

import re
import subprocess
import sys

import import_graph
from rooms import DOORS, HOUSE, ROOMS, imported_rooms, room_of

import kinfolk


def test_the_test_sees_every_kind_of_import():
    assert imported_rooms("import kinfolk") == {"__init__"}
    assert imported_rooms("import kinfolk.cli.jobs as j") == {"cli"}
    assert imported_rooms("from kinfolk import tables, report") == {"tables", "report"}
    assert imported_rooms("from kinfolk.network.site import Site") == {"network"}
    assert imported_rooms("def f():\n    from kinfolk.tables import learn") == {"tables"}
    assert imported_rooms("if TYPE_CHECKING:\n    import kinfolk.engine") == {"engine"}


def test_imports_point_one_way():
    rooms = {path: room_of(path) for path in HOUSE.rglob("*.py")}
    assert set(rooms.values()) - set(DOORS) == set(ROOMS)
    upwards = [
        f"{path.relative_to(HOUSE)} imports {found}"
        for path, room in rooms.items()
        if room not in DOORS
        for found in sorted(imported_rooms(path.read_text()) - set([*ROOMS][: [*ROOMS].index(room) + 1]))
    ]
    assert upwards == []


def test_the_picture_of_the_imports_is_up_to_date(tmp_path, monkeypatch, capsys):
    assert import_graph.main(["--check"]) == 0, "run python docs/tools/import_graph.py"
    monkeypatch.setattr(import_graph, "PICTURE", tmp_path / "import-graph.svg")
    assert import_graph.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert import_graph.main([]) == import_graph.main(["--check"]) == 0


def test_arrows_that_follow_from_others_are_left_out():
    none = {room: set() for room in ROOMS}
    arrows = {**none, "checks": {"typing"}, "network": {"typing", "checks"}}
    assert import_graph.reduced(arrows) == [("checks", "typing"), ("network", "checks")]
    assert {import_graph.layers_of(arrows)[room] for room in ("typing", "checks", "network")} == {0, 1, 2}


def test_every_room_is_explained():
    guide = (HOUSE.parents[1] / "CONTRIBUTING.md").read_text()
    assert re.findall(r"^\| `(\w+)(?:/|\.py)` \|", guide, re.MULTILINE) == [*ROOMS]


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


def test_linear_models_need_no_scikit_learn(tmp_path):
    code = """if True:
        import sys
        from pathlib import Path
        from kinfolk import FedRelax, GTVMin, LinearModel, Network, fit, graphs, resume
        from kinfolk.engine.saved_run import load_run

        heavy = {"sklearn", "skops", "torch", "keras", "ray", "flwr", "matplotlib", "plotly", "networkx", "cvxpy"}
        folder = Path(sys.argv[1])
        network = Network(graphs.chain(2), [([[1.0]], [0.0]), ([[1.0]], [1.0])], public=[[1.0]])
        fit(network, GTVMin(), progress=False)
        print(sorted(heavy & set(sys.modules)))
        for algorithm in (GTVMin(), FedRelax(LinearModel())):
            place = folder / type(algorithm).__name__
            fit(network, algorithm, checkpoint=place / "checkpoint", progress=False)
            saved = resume(place / "checkpoint", network, progress=False).save(place / "run")
            load_run(saved, 2, 1)
        print("sklearn" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "False"]


def test_every_public_name_exists():
    for name in kinfolk.__all__:
        assert getattr(kinfolk, name) is not None
    assert set(kinfolk.__all__) == set(dir(kinfolk))
