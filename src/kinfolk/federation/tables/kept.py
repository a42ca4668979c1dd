"""The blend of a site that has learnt with others from tables: what predicts, and how it is kept in files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError
from kinfolk.engine.checkpoint import damage_noticed
from kinfolk.federation.files import made, replace_file
from kinfolk.federation.tables.schema import MEMBERS
from kinfolk.network.array_files import array_bytes, read_arrays
from kinfolk.network.array_files import plain as as_plain
from kinfolk.tables.blend import blended
from kinfolk.tables.columns import Columns, node_names
from kinfolk.tables.encoding import Encoder, plain
from kinfolk.tables.intervals import Intervals
from kinfolk.tables.local_party import LocalParty
from kinfolk.tables.members.boosted import BoostedFit
from kinfolk.tables.members.linear_fit import LinearFit
from kinfolk.tables.members.saving import Reader, fitted_files, kind_of
from kinfolk.tables.rows import Rows
from kinfolk.tables.target import Target

FILE, FORMAT, POOLED = "blend.safetensors", 3, "pooled"
MODELS, SITE = "models", "site"  # the folder, and the column of nodes where a site is one
LEVEL = 0.9  # of intervals
WIDTHS = ("scale", "seen", "quantiles", "unseen", "usual", "growth")  # of intervals
Kept = LinearFit | BoostedFit


@dataclass(frozen=True, eq=False)
class SiteBlend:
    """What predicts the rows of a site's own nodes.

    Parameters
    ----------
    columns : Columns
        Which column is what.
    encoder : Encoder
        From columns to numbers.
    target : Target
        What is predicted.
    nodes : list of str
        Names of the nodes, in order.
    models : dict
        What every member that counts, and one model for all, has learnt.
    weights : dict
        Of the members.
    intervals : Intervals, optional
        Widths of prediction intervals.
    """

    columns: Columns
    encoder: Encoder
    target: Target
    nodes: list[str]
    models: Mapping[str, Kept]
    weights: dict[str, float]
    intervals: Intervals | None = None

    @classmethod
    def of(cls, party: LocalParty) -> SiteBlend:
        """What the party of a site has learnt."""
        rows = party.rows
        models = {name: as_kept(party.finals[name]) for name in dict.fromkeys([POOLED, *party.weights])}
        return cls(
            rows.columns, rows.encoder, rows.target, rows.nodes, models, party.weights, party.intervals
        )  # fmt: skip

    def predict(self, table: pandas.DataFrame, interval: float | None = None) -> Any:
        """Predict rows of own nodes, as the user knows the target; with an interval, a data frame.

        Other nodes are refused: whom they are like is not known here.
        """
        if self.columns.node not in table.columns:
            raise InputError(f"Expected a column {self.columns.node!r} with the node of every row, found none: add it.")
        names = node_names(table, self.columns.node)
        unknown = [name for name in names if name not in self.nodes]
        if unknown:
            raise InputError(
                f"Expected nodes that this site has learnt with, such as {self.nodes[0]!r}, got {unknown[0]!r}: leave "
                "out its rows, or learn together again with them."
            )
        X = self.encoder.transform(plain(table, self.columns))
        owner = np.searchsorted(np.array(self.nodes, dtype=object), names).astype(np.int64)
        rows = Rows(X, np.full(len(X), np.nan), owner)
        raw = {name: fitted.predict(rows) for name, fitted in self.models.items()}
        found = [np.where(np.isnan(raw[name]), raw[POOLED], raw[name]) for name in self.weights]
        predicted = self.target.decode(blended(found, list(self.weights.values())))
        if interval is None:
            return predicted
        if self.intervals is None:
            raise InputError("Expected numbers predicted by the blend for intervals, got classes, or too few rows.")
        low, high = self.intervals.interval(predicted, owner, interval)
        return pandas.DataFrame(
            {self.columns.target: predicted, "low": self.target.lower_end(low), "high": high}, index=table.index
        )

    def save(self, folder: Path) -> Path:
        """Write it into a folder, in place of what is there."""
        columns = {name: value for name, value in asdict(self.columns).items() if name != "notes"}
        words = {
            "format": FORMAT, "columns": columns, "encoder": self.encoder.to_json(), "target": asdict(self.target),
            "nodes": self.nodes, "weights": self.weights,
            "kinds": {name: kind_of(fitted) for name, fitted in self.models.items()},
        }  # fmt: skip
        arrays: dict[str, Any] = {f"encoder/{name}": values for name, values in self.encoder.to_arrays().items()}
        if self.intervals is not None:
            arrays |= {f"intervals/{name}": getattr(self.intervals, name) for name in WIDTHS}
        draft = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(draft, ignore_errors=True)
        replace_file(made(draft) / FILE, array_bytes(arrays, {"kinfolk": json.dumps(words, default=as_plain)}))
        for member, fitted in self.models.items():
            for name, content in fitted_files(fitted, member):
                replace_file(made(draft / member) / name, content)
        if folder.exists():
            shutil.rmtree(folder)
        draft.replace(folder)
        return folder

    @classmethod
    def load(cls, folder: Path) -> SiteBlend:
        """The blend in a folder; arrays and names, nothing that runs."""
        with damage_noticed(folder / FILE):
            words, arrays = read_arrays(folder / FILE)
            found = json.loads(words["kinfolk"])
            if found["format"] != FORMAT:
                raise ValueError(f"format {found['format']}")
            lists: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value for name, value in found["columns"].items()
            }
            columns = Columns(**lists, notes=())
            target = Target(**{**found["target"], "classes": tuple(found["target"]["classes"])})
            encoder = Encoder.of(found["encoder"], _under("encoder/", arrays))
            reader = Reader(target, len(found["nodes"]), len(encoder.get_feature_names_out()), None, ())
            kinds, widths = found["kinds"], _under("intervals/", arrays)
            if not {POOLED, *found["weights"]} <= set(kinds) <= set(MEMBERS):
                raise ValueError("other models")
            models = {name: reader.read(kind, folder / name) for name, kind in kinds.items()}
            intervals = Intervals(**widths) if widths else None
        return cls(columns, encoder, target, found["nodes"], models, found["weights"], intervals)


def as_kept(fitted: Any) -> Kept:
    """A member that has learnt, as arrays: of runs, their linear models."""
    return fitted if isinstance(fitted, LinearFit | BoostedFit) else LinearFit(fitted.scores)


def _under(prefix: str, arrays: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def blend_predictions(folder: Path, table: pandas.DataFrame) -> pandas.DataFrame:
    """The predictions of the blend in the folder of a site: the node, the target, and for numbers an interval."""
    blend = SiteBlend.load(folder / MODELS)
    if blend.columns.node == SITE and SITE not in table.columns and len(blend.nodes) == 1:
        table = table.assign(**{SITE: blend.nodes[0]})  # a site is a node
    name = f"predicted {blend.columns.target}"
    found = blend.predict(table, None if blend.intervals is None else LEVEL)
    if isinstance(found, pandas.DataFrame):
        out = found.rename(columns={blend.columns.target: name})
    else:
        out = pandas.DataFrame({name: found}, index=table.index)
    return table[[blend.columns.node]].join(out)
