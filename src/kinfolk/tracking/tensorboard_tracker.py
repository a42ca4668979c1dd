"""TensorBoard: runs as event files. It needs ``pip install "kinfolk[tensorboard]"``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError, installed
from kinfolk.tables.table_run import TableRun
from kinfolk.tracking.tracker import Tracker, finite


class TensorBoard(Tracker):
    """Logs a run for TensorBoard: a callback of ``fit``, and ``log`` for finished runs.

    Parameters
    ----------
    folder : str or Path
        Folder of this run; ``tensorboard --logdir`` takes the folder above it, to show runs beside each other.

    >>> import tempfile
    >>> from kinfolk import GTVMin, fit
    >>> from kinfolk.testing import difficult_network
    >>> folder = tempfile.mkdtemp()
    >>> with TensorBoard(f"{folder}/first") as board:
    ...     run = fit(difficult_network(), GTVMin(), callbacks=[board])
    ...     board.log(run)
    >>> [path.name.split(".")[0] for path in Path(f"{folder}/first").iterdir()]
    ['events']
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        files = installed("tensorboard.summary.writer.event_file_writer", "this tracker", "tensorboard")
        self._protos = installed("tensorboard.compat.proto.event_pb2", "this tracker", "tensorboard")
        self._scalar = installed("tensorboard.plugins.scalar.summary_v2", "this tracker", "tensorboard").scalar_pb
        self._text = installed("tensorboard.plugins.text.summary_v2", "this tracker", "tensorboard").text_pb
        try:
            self._file = files.EventFileWriter(str(self.folder))
        except OSError as error:
            raise InputError(
                f"Expected a folder for TensorBoard, cannot write {str(folder)!r}: {error.strerror}."
            ) from error

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers at a step."""
        for name, value in finite(values).items():
            self._add(self._scalar(name, value), step)
        self._file.flush()

    def parameters(self, values: Mapping[str, Any]) -> None:
        """Log what a run was made with, as a table of text."""
        lines = [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in values.items()]
        self.texts({"parameters": "\n".join(["| parameter | value |", "| --- | --- |", *lines])})

    def texts(self, values: Mapping[str, str]) -> None:
        """Log sentences."""
        for name, text in values.items():
            if text:
                self._add(self._text(name, text), self._last)
        self._file.flush()

    def page(self, run: TableRun) -> None:
        """Nothing: TensorBoard keeps no files."""

    def _add(self, summary: Any, step: int) -> None:
        self._file.add_event(self._protos.Event(wall_time=time.time(), step=max(step, 0), summary=summary))

    def close(self, failed: bool = False) -> None:
        """Close the file."""
        self._file.close()
