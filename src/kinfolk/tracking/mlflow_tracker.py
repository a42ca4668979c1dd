"""MLflow: runs in a tracking store. It needs ``pip install "kinfolk[mlflow]"``, or MLflow itself."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError, first_line, installed
from kinfolk.tables.table_run import TableRun
from kinfolk.tracking.tracker import Tracker, finite

LONGEST = 6000  # characters of a parameter
LONGEST_TAG = 5000
AT_ONCE = 100  # parameters in a batch


class MLflow(Tracker):
    """Logs a run to MLflow: a callback of ``fit``, and ``log`` for finished runs.

    Parameters
    ----------
    experiment : str
        Name of the experiment; it is made if there is none.
    name : str, optional
        Name of the run; MLflow draws one by default.
    uri : str, optional
        The tracking store, such as ``"sqlite:///mlflow.db"`` or a server; by default that of MLflow.

    Attributes
    ----------
    client : mlflow.MlflowClient
        The client of MLflow, to log more to the same run.
    run_id : str
        By which MLflow knows the run.

    >>> import tempfile
    >>> from kinfolk import GTVMin, fit
    >>> from kinfolk.testing import difficult_network
    >>> folder = tempfile.mkdtemp()
    >>> with MLflow("networks", uri=f"sqlite:///{folder}/mlflow.db") as log:
    ...     run = fit(difficult_network(), GTVMin(), callbacks=[log])
    ...     log.log(run)
    >>> log.client.get_run(log.run_id).info.status
    'FINISHED'
    """

    def __init__(self, experiment: str = "kinfolk", *, name: str | None = None, uri: str | None = None) -> None:
        super().__init__()
        self.experiment, self.name, self.uri = experiment, name, uri
        self._mlflow = installed("mlflow", "this tracker", "mlflow")
        self._entities = installed("mlflow.entities", "this tracker", "mlflow")

    @cached_property
    def client(self) -> Any:
        """The client of MLflow, to log more to the same run."""
        try:
            return self._mlflow.MlflowClient(self.uri)
        except Exception as error:  # of mlflow, or of the database behind it
            raise InputError(
                f"Expected a tracking store of MLflow, cannot use {self.uri!r} ({first_line(error)})."
            ) from error

    @cached_property
    def run_id(self) -> str:
        """By which MLflow knows the run; it is made when it is first asked for."""
        known = self.client.get_experiment_by_name(self.experiment)
        place = self.client.create_experiment(self.experiment) if known is None else known.experiment_id
        return str(self.client.create_run(place, run_name=self.name).info.run_id)

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log metrics at a step."""
        now = int(1000 * time.time())
        found = [self._entities.Metric(_key(name), value, now, step) for name, value in finite(values).items()]
        self.client.log_batch(self.run_id, metrics=found)

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Log parameters."""
        found = [self._entities.Param(_key(name), str(value)[:LONGEST]) for name, value in values.items()]
        for k in range(0, len(found), AT_ONCE):
            self.client.log_batch(self.run_id, params=found[k : k + AT_ONCE])

    def texts(self, values: Mapping[str, str]) -> None:
        """Log tags."""
        for name, text in values.items():
            if text:
                self.client.set_tag(self.run_id, name, text[:LONGEST_TAG])

    def page(self, run: TableRun) -> None:
        """Log the page and the leaderboard as artifacts."""
        with tempfile.TemporaryDirectory() as folder:
            run.leaderboard.to_csv(Path(folder) / "leaderboard.csv")
            self.client.log_artifact(self.run_id, str(Path(folder) / "leaderboard.csv"))
            self.client.log_artifact(self.run_id, str(run.report(Path(folder) / "report.html")))

    def close(self, failed: bool = False) -> None:
        """End the run, as finished or failed."""
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


def _key(name: str) -> str:
    """A name as MLflow allows it.

    >>> _key("error/my: model")
    'error/my_ model'
    """
    return re.sub(r"[^\w\-. /]", "_", name)
