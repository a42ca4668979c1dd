"""Runs in TensorBoard and MLflow: what the real libraries read back is what was logged."""

import re
from pathlib import Path

import numpy as np
import pytest

from kinfolk import GTVMin, InputError, fit, learn
from kinfolk.testing import difficult_network
from kinfolk.tracking import MLflow, TensorBoard
from test_table import shops

pytestmark = pytest.mark.usefixtures("few_trees")


@pytest.fixture(scope="module")
def table_run():
    return learn(shops(12), node="shop", target="sales", features=["price", "district"], progress=False)


def same_curve(steps, values, history, rtol):
    """What was read back is a column of the history, without what is no number."""
    known = history.dropna()
    assert list(steps) == known.index.tolist()
    np.testing.assert_allclose(values, known, rtol=rtol)


# ---------------------------------------------------------------------- TensorBoard


def events(folder):
    """What the reader of TensorBoard itself finds in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()


def curve(found, tag):
    from tensorboard.util.tensor_util import make_ndarray

    points = found.Tensors(tag)
    return [point.step for point in points], [make_ndarray(point.tensor_proto) for point in points]


def sentence(found, tag):
    return curve(found, f"{tag}/text_summary" if f"{tag}/text_summary" in found.Tags()["tensors"] else tag)[1][-1]


def test_tensorboard_reads_the_history_that_a_callback_wrote(tmp_path):
    with TensorBoard(tmp_path / "run") as board:
        run = fit(difficult_network(), GTVMin(lam=0.3), rounds=40, stop=None, callbacks=[board])
        half = events(tmp_path / "run")  # can be read while the run goes on
        board.log(run)
    found = events(tmp_path / "run")
    assert curve(half, "objective") == curve(found, "objective")  # a row is logged once
    for name in ("objective", "residual", "bytes"):
        same_curve(*curve(found, name), run.history[name], 1e-6)
    assert b"| lam | 0.3 |" in sentence(found, "parameters").item()
    assert run.stopped.encode() in sentence(found, "stopped").item()


def test_tensorboard_has_errors_weights_and_judgement_of_a_table(tmp_path, table_run):
    with TensorBoard(tmp_path) as board:
        board.log(table_run)
    found = events(tmp_path)
    for name, error in table_run.leaderboard["error"].items():
        np.testing.assert_allclose(curve(found, f"error/{name}")[1], [error], rtol=1e-6)
    for name, weight in table_run.weights.items():
        np.testing.assert_allclose(curve(found, f"weight/{name}")[1], [weight], rtol=1e-6, atol=1e-9)
    same_curve(*curve(found, "objective"), table_run.history["objective"], 1e-6)
    assert sentence(found, "judgement").item().decode() == table_run.judgement.text
    assert b"| target | sales |" in sentence(found, "parameters").item()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Expected a folder for TensorBoard, cannot write"):
        TensorBoard(tmp_path / "file" / "run")


# ---------------------------------------------------------------------- MLflow


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store in one file, with artifacts beside it; mlflow warns about itself when it is first imported."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{folder}/mlflow.db"
    client = mlflow.MlflowClient(uri)
    client.create_experiment("shops", artifact_location=(folder / "artifacts").as_uri())
    return uri, client


def test_mlflow_reads_the_history_that_a_callback_wrote(store):
    uri, client = store
    with MLflow("networks", name="first", uri=uri) as log:
        run = fit(difficult_network(), GTVMin(lam=0.3), rounds=40, stop=None, callbacks=[log])
        log.log(run)
    found = client.get_run(log.run_id)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "first")
    for name in ("objective", "residual", "bytes"):
        points = sorted(client.get_metric_history(log.run_id, name), key=lambda point: point.step)
        same_curve([point.step for point in points], [point.value for point in points], run.history[name], 1e-12)
    assert found.data.params["lam"] == "0.3"
    assert found.data.params["algorithm"] == "GTVMin"
    assert found.data.tags["stopped"] == run.stopped
    assert client.get_experiment(found.info.experiment_id).name == "networks"


def test_mlflow_has_settings_errors_weights_and_the_page_of_a_table(store, table_run, tmp_path):
    uri, client = store
    with MLflow("shops", uri=uri) as log:
        log.log(table_run)
    data = client.get_run(log.run_id).data
    assert data.params["target"] == "sales"
    assert float(data.params["lam"]) == table_run.path.lams[table_run.path.chosen]
    for name, error in table_run.leaderboard["error"].items():
        assert data.metrics[f"error/{name}"] == error
    for name, weight in table_run.weights.items():
        assert data.metrics[f"weight/{name}"] == weight
    assert data.metrics["gain"] == table_run.judgement.gain
    assert data.tags["judgement"] == table_run.judgement.text
    assert {each.path for each in client.list_artifacts(log.run_id)} == {"leaderboard.csv", "report.html"}
    page = Path(client.download_artifacts(log.run_id, "report.html", str(tmp_path))).read_text()
    assert re.search("<title>sales for each shop", page)


def test_a_run_that_fails_is_marked_in_mlflow(store):
    uri, client = store

    def crash(row, snapshot):
        raise RuntimeError("no")

    log = MLflow("networks", uri=uri)
    with pytest.raises(RuntimeError), log:
        fit(difficult_network(), GTVMin(), callbacks=[log, crash])
    assert client.get_run(log.run_id).info.status == "FAILED"
    assert len(client.get_metric_history(log.run_id, "objective")) == 1


def test_a_store_that_is_none_is_one_sentence():
    with pytest.raises(InputError, match="Expected a tracking store of MLflow, cannot use 'nowhere://x'"):
        fit(difficult_network(), GTVMin(), callbacks=[MLflow(uri="nowhere://x")])


def test_only_runs_are_logged(tmp_path):
    with TensorBoard(tmp_path) as board, pytest.raises(InputError, match="Expected a run to log"):
        board.log("run")
