"""A blob as the content of a message of Flower: one record, so that no more calls are needed than for anything else."""

from __future__ import annotations

from typing import Any

RECORD, FIELD, QUERY = "kinfolk", "blob", "query"


def content_of(blob: bytes) -> Any:
    """A blob as a RecordDict."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord({FIELD: blob})})


def blob_in(content: Any) -> bytes:
    """The blob in a RecordDict; empty: there is none."""
    record = content.config_records.get(RECORD, {})
    blob = record.get(FIELD, b"")
    return blob if isinstance(blob, bytes) else b""
