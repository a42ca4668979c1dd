"""A federation in one process, for tests: services that are called directly, or a process for every site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kinfolk import Network
from kinfolk.federation.coordinator import Federation
from kinfolk.federation.joining import Schema
from kinfolk.federation.rows import SiteRows
from kinfolk.federation.service import SiteService
from kinfolk.network.site import sites_of


class Direct:
    """Carries blobs by calling the services; remembers all that it carried."""

    def __init__(self, services: dict[str, SiteService]) -> None:
        self.services = services
        self.carried: list[bytes] = []
        self.log: list[tuple[str, str, bytes]] = []  # which site, who received, what

    def ask(self, blobs, most, seconds):
        answers = {name: self.services[name].answer(blob) for name, blob in blobs.items()}
        self.carried += [*blobs.values(), *answers.values()]
        self.log += [(name, "site", blob) for name, blob in blobs.items()]
        self.log += [(name, "coordinator", answer) for name, answer in answers.items()]
        assert all(len(answer) <= most[name] for name, answer in answers.items())
        return answers


def site_names(count: int) -> list[str]:
    return [f"site {k}" for k in range(count)]


def rows_of(network: Network, count: int) -> dict[str, SiteRows]:
    """The rows of every site, cut as InProcess does."""
    sites = sites_of(network, count)
    return {name: SiteRows.of(network, site.nodes) for name, site in zip(site_names(count), sites, strict=True)}


def services_of(network: Network, count: int, folder: Path, algorithm: Any = None) -> dict[str, SiteService]:
    return {name: SiteService(name, rows, folder / name, algorithm) for name, rows in rows_of(network, count).items()}


def federation_of(network: Network, count: int, post: Any, **options: Any) -> Federation:
    task = "classes" if network.classes is not None else "numbers"
    schema = Schema(network.features, task)
    return Federation(network.graph, site_names(count), post, schema, network.public, **options)


def assert_same_run(here: Any, there: Any, services: dict[str, SiteService]) -> None:
    """The history is the same to the last bit, but for the seconds, and so are the models at the sites."""
    assert there.stopped == here.stopped
    columns = [name for name in here.history.columns if not name.startswith("seconds")]
    columns = [name for name in columns if name in there.history.columns]  # some need all states
    assert {"objective", "residual", "bytes"} <= set(columns)
    np.testing.assert_array_equal(there.history[columns].to_numpy(), here.history[columns].to_numpy())
    test = here.network.test
    for service in services.values():
        numbers = here.network.graph.numbers(service.rows.nodes)
        own = test.take(numbers)
        expected = here.models.predict(own.X, numbers[own.owner])
        np.testing.assert_array_equal(service.models.predict(own.X, own.owner), expected)
