"""Checkpoints: killed at any moment, a run that is resumed ends as the undisturbed one, to the last bit."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from sklearn.tree import DecisionTreeRegressor

import kinfolk
from kinfolk import FedGD, FedRelax, GTVMin, InProcess, InputError, LinearModel, Squared, Tolerance, fit, resume
from kinfolk.algorithms.catalog import CATALOG, rebuilt
from kinfolk.engine import checkpoint
from kinfolk.engine.checkpoint import FILE, Checkpoints, digest
from kinfolk.engine.specs import differences, spec_of
from kinfolk.local_models.packing import Unpacker
from kinfolk.testing import difficult_network
from shipped import SHIPPED, by_name, options

HERE = Path(__file__).parent


def assert_identical(one, other):
    """Models, bytes, history and reason are the same to the last bit, but for the seconds."""
    assert one.stopped == other.stopped
    assert one.rounds == other.rounds
    assert one.history.index.tolist() == other.history.index.tolist()
    columns = [name for name in one.history.columns if not name.startswith("seconds")]
    np.testing.assert_array_equal(one.history[columns].to_numpy(), other.history[columns].to_numpy())
    assert one.snapshot.bytes_sent == other.snapshot.bytes_sent
    for name in one.state._fields:
        ours, theirs = getattr(one.state, name), getattr(other.state, name)
        if ours.dtype != object:
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
    test = one.network.test
    np.testing.assert_array_equal(one.models.predict(test.X, test.owner), other.models.predict(test.X, test.owner))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Folders of runs that were killed, one for every shipped algorithm."""
    folder = tmp_path_factory.mktemp("killed")
    done = subprocess.run(
        [sys.executable, HERE / "killed.py", folder], capture_output=True, text=True, cwd=HERE, timeout=500
    )
    assert done.returncode == 0, done.stderr
    ends = [line.split("\t") for line in done.stdout.splitlines()]
    assert [name for name, _, _ in ends] == list(SHIPPED)
    assert {code for _, _, code in ends} == {str(-signal.SIGKILL)}
    return folder


@pytest.mark.parametrize("name", SHIPPED)
def test_a_killed_run_is_resumed_bit_identical(killed, name):
    make_network, make_algorithm = SHIPPED[name]
    network = make_network()
    resumed = resume(killed / name, network, make_algorithm(), progress=False)
    straight = fit(network, make_algorithm(), **options(name))
    assert_identical(resumed, straight)


def test_killed_at_random_moments(tmp_path):
    """A run that takes half a second, killed after random times until it gets through."""
    code = (
        "import sys; from kinfolk import GTVMin, datasets, fit, resume; from pathlib import Path\n"
        "network, folder = datasets.load_us_counties().network(), Path(sys.argv[1])\n"
        "go_on = (folder / 'checkpoint.safetensors').exists()\n"
        "print('ready', flush=True)\n"
        "run = (resume(folder, network, checkpoint_every=5, progress=False) if go_on else\n"
        "       fit(network, GTVMin(lam=0.3), rounds=150, stop=None, checkpoint=folder, checkpoint_every=5,\n"
        "           progress=False))\n"
        "import numpy; numpy.savez(folder / 'end', w=run.models.w, bytes=run.history['bytes'])\n"
    )
    rng = np.random.default_rng(int.from_bytes(os.urandom(4)))
    kills = 0
    for _ in range(12):
        process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE)
        process.stdout.readline()
        try:
            process.wait(0.02 if kills == 0 else rng.uniform(0.02, 0.5) if kills < 4 else 60)  # the first one dies
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert process.returncode == 0
    assert kills > 0
    network = kinfolk.datasets.load_us_counties().network()
    straight = fit(network, GTVMin(lam=0.3), rounds=150, stop=None, progress=False)
    end = np.load(tmp_path / "end.npz")
    np.testing.assert_array_equal(end["w"], straight.models.w)
    np.testing.assert_array_equal(end["bytes"], straight.history["bytes"])


def test_what_is_made_of_names_and_numbers_need_not_be_given_again(tmp_path):
    network = difficult_network()
    algorithm = GTVMin(Squared(ridge=0.1), lam=0.2)
    run = fit(network, algorithm, stop=Tolerance(1e-8), checkpoint=tmp_path, checkpoint_every=3)
    again = resume(tmp_path, network, engine=InProcess(1))
    assert again.algorithm == algorithm
    assert_identical(again, run)


def test_what_holds_code_must_be_given_again_and_is_compared(tmp_path):
    network = difficult_network()
    fit(network, FedRelax(DecisionTreeRegressor(max_depth=2)), rounds=2, stop=None, checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"Expected the algorithm of this run again, as it holds sklearn\.tree"):
        resume(tmp_path, network)
    with pytest.raises(InputError, match="the algorithm: model is another DecisionTreeRegressor"):
        resume(tmp_path, network, FedRelax(DecisionTreeRegressor(max_depth=3)))
    resume(tmp_path, network, FedRelax(DecisionTreeRegressor(max_depth=2)))


def test_a_function_is_compared_by_what_it_does(tmp_path):
    network = difficult_network()

    def half(round_):
        return [k for k in range(24) if (k + round_) % 2]

    fit(network, FedGD(), rounds=4, stop=None, participation=half, checkpoint=tmp_path)
    with pytest.raises(InputError, match="Expected the participation of this run again"):
        resume(tmp_path, network)
    with pytest.raises(InputError, match="the participation is another function"):
        resume(tmp_path, network, participation=lambda round_: [k for k in range(24) if (k + round_) % 3])
    resume(tmp_path, network, participation=half)
    assert spec_of(by_name) == spec_of(by_name)
    assert spec_of(by_name) != spec_of(half)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda n: n.hold_out(np.arange(len(n.data.y)) == 3), "got one with other 'rows', 'test rows'"),
        (lambda n: n.with_public(np.ones((2, 3))), "got one with other 'public points'"),
        (lambda n: n.with_graph(kinfolk.graphs.chain(24)), "got one with other 'graph'"),
    ],
)
def test_another_network_is_refused(tmp_path, change, sentence):
    network = difficult_network()
    fit(network, FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    with pytest.raises(InputError, match=sentence):
        resume(tmp_path, change(network))


def test_another_algorithm_is_refused_and_the_difference_said(tmp_path):
    network = difficult_network()
    fit(network, GTVMin(Squared(ridge=0.1), lam=0.2), rounds=2, stop=None, checkpoint=tmp_path)
    for other, sentence in (
        (GTVMin(Squared(ridge=0.1), lam=0.3), "the algorithm: lam is 0.3 and was 0.2"),
        (GTVMin(Squared(ridge=0.2), lam=0.2), "the algorithm: loss: ridge is 0.2 and was 0.1"),
        (FedGD(), "the algorithm is FedGD and was GTVMin"),
    ):
        with pytest.raises(InputError, match=sentence):
            resume(tmp_path, network, other)
    with pytest.raises(InputError, match="the stop rule is Tolerance and was None"):
        resume(tmp_path, network, stop=Tolerance())


def edit_header(folder: Path, change) -> None:
    file = folder / FILE
    with safetensors.safe_open(file, "numpy") as opened:
        header = json.loads(opened.metadata()["kinfolk"])
    arrays = safetensors.numpy.load_file(file)
    change(header)
    text = json.dumps(header)
    file.write_bytes(safetensors.numpy.save(arrays, metadata={"kinfolk": text, "digest": digest(text, arrays)}))


def test_another_version_of_the_format_is_refused(tmp_path):
    network = difficult_network()
    fit(network, FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    edit_header(tmp_path, lambda header: header.update(format=99, version="9.9"))
    with pytest.raises(InputError, match=r"Expected a checkpoint of format 1 by kinfolk .* has format 99, written by"):
        resume(tmp_path, network)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_a_cut_file_gets_a_sentence(tmp_path, share):
    network = difficult_network()
    fit(network, GTVMin(), rounds=2, stop=None, checkpoint=tmp_path)
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: int(share * len(content))])
    with pytest.raises(InputError, match=r"Expected a whole checkpoint in .*, it is damaged"):
        resume(tmp_path, network)


def test_a_flipped_bit_is_noticed(tmp_path):
    network = difficult_network()
    fit(network, GTVMin(), rounds=2, stop=None, checkpoint=tmp_path)
    content = bytearray((tmp_path / FILE).read_bytes())
    for place in (len(content) // 2, len(content) - 9, len(content) - 1000):
        flipped = bytearray(content)
        flipped[place] ^= 4
        (tmp_path / FILE).write_bytes(flipped)
        with pytest.raises(InputError, match=r"Expected a whole checkpoint in .*, it is damaged"):
            resume(tmp_path, network)


@pytest.mark.parametrize("part", ["network", "specs", "numbers", "position", "snapshot", "format"])
def test_a_header_without_a_part_gets_a_sentence(tmp_path, part):
    network = difficult_network()
    fit(network, GTVMin(), rounds=2, stop=None, checkpoint=tmp_path)
    edit_header(tmp_path, lambda header: header.pop(part))
    with pytest.raises(InputError):
        resume(tmp_path, network)


def test_a_checkpoint_cannot_name_code(tmp_path):
    """A record or a spec that names something else is refused, and nothing runs."""
    network = difficult_network()
    fit(network, GTVMin(), rounds=2, stop=None, checkpoint=tmp_path)
    original = (tmp_path / FILE).read_bytes()

    def record(name):
        def change(header):
            header["snapshot"]["state"]["record"] = name

        return change

    def spec(name):
        def change(header):
            header["specs"]["algorithm"] = {"type": name, "fields": {"command": "touch ran"}}

        return change

    owner = Unpacker({}, GTVMin(), ())
    assert owner._record_type("State").__module__ == "kinfolk.algorithms.gtvmin.algorithm"
    for name in ("np", "InputError", "GTVMin", "os", "subprocess.Popen", "Site", "eval", "Inexact", "OptionalHooks"):
        with pytest.raises(InputError, match="Expected records of GTVMin in the checkpoint"):
            owner._record_type(name)
        (tmp_path / FILE).write_bytes(original)
        edit_header(tmp_path, record(name))
        with pytest.raises(InputError):
            resume(tmp_path, network)
    for name in ("subprocess.Popen", "os.system", "builtins.exec", "kinfolk.tables.own_code.from_file"):
        assert name not in CATALOG
        (tmp_path / FILE).write_bytes(original)
        edit_header(tmp_path, spec(name))
        with pytest.raises(InputError, match="Expected the algorithm of this run again"):
            resume(tmp_path, network)
        with pytest.raises(InputError, match="Expected names of kinfolk and numbers"):
            rebuilt({"type": name, "fields": {}})


def test_wrong_arguments_are_not_called_damage(tmp_path):
    network = difficult_network()
    fit(network, FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    with pytest.raises(InputError, match="Expected the Network of the run, got str"):
        resume(tmp_path, "network")
    for wrong in (FedGD, "FedGD", None):
        with pytest.raises(InputError, match="Expected the algorithm of the run, or nothing, got"):
            resume(tmp_path, network, wrong)
    with pytest.raises(InputError, match="Expected an engine such as"):
        resume(tmp_path, network, engine=3)


def test_a_folder_with_a_checkpoint_is_not_overwritten(tmp_path):
    network = difficult_network()
    fit(network, FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"has one: go on from it with kinfolk\.resume, or choose another folder"):
        fit(network, FedGD(), checkpoint=tmp_path)
    with pytest.raises(InputError, match=r"Expected a checkpoint in .*, found none"):
        resume(tmp_path / "elsewhere", network)


def test_files_of_the_user_in_the_folder_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    fit(difficult_network(), FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == [FILE, "lock", "notes.txt"]


def test_two_runs_at_once_in_one_folder(tmp_path):
    code = (
        "import sys, time; from kinfolk import FedGD, fit; from kinfolk.testing import difficult_network\n"
        "fit(difficult_network(), FedGD(), rounds=10, stop=None, checkpoint=sys.argv[1],\n"
        "    callbacks=[lambda row, _: (print('going', flush=True), time.sleep(30))], progress=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(InputError, match="Expected a folder of checkpoints that nobody uses"):
            fit(difficult_network(), FedGD(), checkpoint=tmp_path)
        other.kill()
    time.sleep(0.1)
    fit(difficult_network(), FedGD(), rounds=1, checkpoint=tmp_path)


def full_disk(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_stops_the_run_or_is_reported(tmp_path, monkeypatch):
    network = difficult_network()
    straight = fit(network, FedGD(), rounds=9, stop=None)
    settings = {"rounds": 9, "stop": None, "checkpoint_every": 4}
    monkeypatch.setattr(os, "fsync", full_disk)
    run = fit(network, FedGD(), checkpoint=tmp_path / "a", **settings)
    assert run.stopped.startswith("stopped: the checkpoint in ")
    assert run.stopped.endswith("could not be written: No space left on device")
    assert run.rounds == 0
    with pytest.warns(RuntimeWarning, match="The run goes on, although the checkpoint in .* No space left on device"):
        run = fit(network, FedGD(), checkpoint=tmp_path / "b", checkpoint_failure="go on", **settings)
    assert_identical(run, straight)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["lock"]


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path, monkeypatch):
    network, real = difficult_network(), checkpoint.write_whole
    straight = fit(network, FedGD(), rounds=9, stop=None)
    calls = []

    def only_two_fit(file, content, *, forced):
        calls.append(1)
        (real if len(calls) <= 2 else full_disk)(file, content, forced=forced)

    monkeypatch.setattr(checkpoint, "write_whole", only_two_fit)
    run = fit(network, FedGD(), rounds=9, stop=None, checkpoint=tmp_path, checkpoint_every=3)
    assert run.rounds == 6
    monkeypatch.setattr(checkpoint, "write_whole", real)
    assert_identical(resume(tmp_path, network), straight)


def test_a_folder_that_cannot_be_made_gets_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Expected a folder for checkpoints, cannot use"):
        fit(difficult_network(), FedGD(), checkpoint=tmp_path / "file" / "folder")


@pytest.mark.skipif(os.geteuid() == 0 and not Path("/proc/version").exists(), reason="root writes everywhere")
def test_a_read_only_file_system_gets_a_sentence():
    with pytest.raises(InputError, match="Expected a folder for checkpoints, cannot use '/proc/nowhere'"):
        fit(difficult_network(), FedGD(), checkpoint="/proc/nowhere")


@pytest.mark.parametrize("every", [0, -1, 1.5])
def test_checkpoint_every_is_checked(tmp_path, every):
    with pytest.raises(InputError, match="The 'checkpoint_every' parameter of fit must be a whole number ≥ 1"):
        fit(difficult_network(), FedGD(), checkpoint=tmp_path, checkpoint_every=every)


@pytest.mark.parametrize("shape", [(37, 3000), (37, 0), (36, 3), (37, 3, 1)])
def test_arrays_of_another_shape_are_refused_before_they_are_used(tmp_path, shape):
    """Compiled loops do not check their bounds: a crafted file must not reach them."""
    network = difficult_network()
    fit(network, GTVMin(), rounds=2, stop=None, checkpoint=tmp_path)
    with safetensors.safe_open(tmp_path / FILE, "numpy") as opened:
        header = json.loads(opened.metadata()["kinfolk"])
    arrays = safetensors.numpy.load_file(tmp_path / FILE)
    header["stopped"], header["numbers"]["last"] = None, 9
    arrays[header["snapshot"]["state"]["fields"]["u"]["array"]] = np.zeros(shape)
    text = json.dumps(header)
    (tmp_path / FILE).write_bytes(
        safetensors.numpy.save(arrays, metadata={"kinfolk": text, "digest": digest(text, arrays)})
    )
    with pytest.raises(
        InputError, match=r"Expected float64 of shape \(37, 3\) in the checkpoint, got float64 of shape"
    ):
        resume(tmp_path, network)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(network={}),
        lambda header: header["specs"]["algorithm"].pop("fields"),
        lambda header: header["specs"]["algorithm"]["fields"].update(unknown=1),
        lambda header: header["position"].update(rows=[{}]),
        lambda header: header.update(specs=[]),
        lambda header: header.update(version="7.7"),
        lambda header: header["snapshot"].update(state={"list": [{"list": []}] * 3}),
    ],
)
def test_a_crafted_header_gets_a_sentence(tmp_path, change):
    network = difficult_network()
    fit(network, FedGD(), rounds=2, stop=None, checkpoint=tmp_path)
    edit_header(tmp_path, change)
    with pytest.raises(InputError, match=r"^Expected "):
        resume(tmp_path, network)


def test_a_run_that_failed_can_be_resumed(tmp_path, monkeypatch):
    network, real = difficult_network(), checkpoint.write_whole
    straight = fit(network, FedGD(), rounds=9, stop=None)
    calls = []

    def third_fails(file, content, *, forced):
        calls.append(1)
        (full_disk if len(calls) == 3 else real)(file, content, forced=forced)

    monkeypatch.setattr(checkpoint, "write_whole", third_fails)
    run = fit(network, FedGD(), rounds=9, stop=None, checkpoint=tmp_path, checkpoint_every=3)
    assert run.rounds == 6
    assert_identical(resume(tmp_path, network, checkpoint_every=3), straight)


def test_the_engine_is_part_of_the_run(tmp_path):
    network = difficult_network()
    engine = InProcess(3, lost=0.3)
    straight = fit(network, GTVMin(), rounds=12, stop=None, engine=engine)
    stop_early(network, GTVMin(), tmp_path, engine=engine)
    with pytest.raises(InputError, match="Expected an engine that loses 30% of the messages, got 0%"):
        resume(tmp_path, network, engine=InProcess(3))
    assert_identical(resume(tmp_path, network), straight)


def stop_early(network, algorithm, folder, **options):
    """A run that ends in round 7, as if by a crash."""

    def crash(row, snapshot):
        if row["round"] == 7:
            raise KeyboardInterrupt

    settings = {"rounds": 12, "stop": None, "checkpoint": folder, "checkpoint_every": 2, "callbacks": [crash]}
    with pytest.raises(KeyboardInterrupt):
        fit(network, algorithm, **{**settings, **options})


@pytest.mark.parametrize("sites", [1, 4])
def test_resumed_with_a_stop_rule_polish_and_reports(tmp_path, sites):
    """Long enough for reports to the coordinator, proposals of an answer, and convergence."""
    network, algorithm, engine = difficult_network(), GTVMin(lam=0.1), InProcess(sites)
    straight = fit(network, algorithm, engine=engine, rounds=4000)
    stop_early(network, algorithm, tmp_path, engine=engine, rounds=4000, stop=Tolerance())
    assert_identical(resume(tmp_path, network, checkpoint_every=3), straight)


def test_a_kill_before_the_first_round_leaves_a_checkpoint(tmp_path):
    stop_early(difficult_network(), FedGD(), tmp_path, checkpoint_every=100)
    assert (tmp_path / FILE).is_file()


def test_an_ended_run_can_be_read_from_a_folder_that_is_in_use(tmp_path):
    network = difficult_network()
    run = fit(network, FedGD(), rounds=3, stop=None, checkpoint=tmp_path)
    held = Checkpoints.again(tmp_path, 1, "stop")
    assert_identical(resume(tmp_path, network), run)
    held.close()


def test_functions_are_compared_by_what_they_do_not_by_where_they_stand():
    code = (
        "from functools import partial; from kinfolk.engine.specs import spec_of\n"
        "def f(r, *, k=1): return [x for x in range(r) if x in {'a', 'b', 'c'}]\n"
        "class A:\n    def __init__(self, n): self.n = n\n    def m(self): return self.n\n"
        "print([spec_of(each)['fingerprint'] for each in (f, A(1).m, partial(f, 3))])"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(seen) == 1
    pairs = [
        (lambda: [x + 1 for x in ()], lambda: [x + 2 for x in ()]),
        (with_default(1), with_default(2)),
        (np.ones(2).sum, np.zeros(2).sum),
    ]
    for one, other in pairs:
        assert spec_of(one) != spec_of(other)


def with_default(value):
    def function(*, option=value):
        return option

    return function


def test_every_type_of_the_catalog_is_rebuilt():
    for algorithm in (
        GTVMin(lam=0.3),
        FedRelax(LinearModel(ridge=0.5)),
        SHIPPED["IFCA"][1](),
        SHIPPED["Pooled by cluster"][1](),
    ):
        assert rebuilt(spec_of(algorithm)) == algorithm
    assert list(differences(spec_of(FedGD()), spec_of(FedGD()), "it")) == []
