"""The tailored models of a site, in its own folder: how they are kept, and how they predict."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from kinfolk.checks import InputError, listing
from kinfolk.engine.checkpoint import damage_noticed
from kinfolk.engine.protocol import Algorithm
from kinfolk.engine.specs import spec_of
from kinfolk.federation.agreement import Agreement
from kinfolk.federation.files import made, replace_file
from kinfolk.federation.joining import Units
from kinfolk.federation.service import SiteService
from kinfolk.federation.site_run import SiteRun
from kinfolk.federation.site_table import encoded, nodes_of
from kinfolk.federation.tables.kept import MODELS
from kinfolk.local_models.fitted import model_file
from kinfolk.local_models.saved_models import read_models
from kinfolk.typing import Floats

ABOUT, NODES = "site.json", "nodes.csv"


@dataclass(frozen=True, eq=False)
class SiteModels:
    """The models of the nodes of a site.

    Parameters
    ----------
    site : str
        The name of the site.
    nodes : list of str
        Names of its nodes.
    agreement : Agreement
        What columns mean.
    units : Units, optional
        Of the features.
    models : Models
        A model for every node.
    """

    site: str
    nodes: list[str]
    agreement: Agreement
    units: Units | None
    models: Any

    def predict(self, table: pandas.DataFrame) -> pandas.DataFrame:
        """Predictions for the rows of a table: the node, the target, and for classes their probabilities."""
        agreement = self.agreement
        lacking = [name for name in agreement.features if name not in table.columns]
        if lacking or (agreement.node is not None and agreement.node not in table.columns):
            raise InputError(
                f"Expected the columns of the agreement, the table lacks {listing(lacking or ['the node'])}."
            )
        names = nodes_of(table, agreement, self.site)
        number = {name: k for k, name in enumerate(self.nodes)}
        unknown = [name for name in names if name not in number]
        if unknown:
            raise InputError(
                f"Expected nodes of site {self.site!r}, got {listing(dict.fromkeys(unknown))}: it has no model of "
                "others."
            )
        node, X = np.array([number[name] for name in names], dtype=np.int64), encoded(table, agreement)
        X = X if self.units is None else np.nan_to_num((X - self.units.centre) / self.units.width, nan=0.0)
        found = agreement.target_kind.predicted(self.models, X, node)
        out = pandas.DataFrame({"node" if agreement.node is None else agreement.node: names}, index=table.index)
        out[f"predicted {agreement.target}"] = agreement.target_kind.decode(found)
        for k, name in enumerate(agreement.classes):
            out[f"probability of {name}"] = found[:, k]
        return out


def save_models(service: SiteService, agreement: Agreement, main: Algorithm[Any]) -> Path | None:
    """Keep the models of the main algorithm; None: the site was not in its run, or it has not begun."""
    run = service.run
    if run is None or not run.measured or spec_of(run.algorithm) != spec_of(main):
        return None
    folder = service.folder / MODELS
    draft = folder.with_name(f"{MODELS}.part")
    shutil.rmtree(draft, ignore_errors=True)
    made(draft)
    name, content = model_file(run.models, "tailored")
    about = {
        "site": service.name, "nodes": list(service.rows.nodes), "agreement": agreement.to_toml(),
        "units": None if run.join.units is None else [each.tolist() for each in run.join.units],
    }  # fmt: skip
    replace_file(draft / name, content)
    replace_file(draft / ABOUT, json.dumps(about, indent=1).encode())
    replace_file(draft / NODES, node_errors(run).to_csv(index=False).encode())
    if folder.exists():
        shutil.rmtree(folder)
    draft.replace(folder)
    return folder


def node_errors(run: SiteRun) -> pandas.DataFrame:
    """The rows of every node of a site, and the error of its model on those held out."""
    site = run.worker.site
    out = pandas.DataFrame({"node": site.names, "rows": site.data.sizes})
    if site.test is not None:
        each: Floats = run.models.error(site.test.X, site.test.y, site.test.owner)
        held, sizes = site.test.owner, site.test.sizes
        out["held_out"] = sizes
        with np.errstate(invalid="ignore"):
            out["error"] = np.bincount(held, each, len(sizes)) / np.where(sizes > 0, sizes, np.nan)
    return out


def load_models(folder: Path, trusted: Sequence[str] = ()) -> SiteModels:
    """The models in the folder of a site.

    Parameters
    ----------
    folder : Path
        Of the site.
    trusted : sequence of str
        Types of estimators that may be loaded beside those that kinfolk knows.

    Returns
    -------
    SiteModels
    """
    place = folder / MODELS
    if not (place / ABOUT).is_file():
        raise InputError(
            f"Expected the folder of a site with models, found none in {str(folder)!r}: they are kept when a run ends."
        )
    with damage_noticed(place):
        about = json.loads((place / ABOUT).read_text())
        agreement = Agreement.of(about["agreement"], str(place / ABOUT))
        units = (
            None if about["units"] is None else Units(*(np.array(each, dtype=np.float64) for each in about["units"]))
        )
        models = read_models(place, len(about["nodes"]), len(agreement.columns), trusted)
    return SiteModels(about["site"], about["nodes"], agreement, units, models)
