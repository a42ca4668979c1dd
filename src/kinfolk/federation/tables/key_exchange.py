"""Secure aggregation at a site: with whom sums are made, and that they are made with the same sites as before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinfolk.checks import listing
from kinfolk.engine.protocol import Arrays
from kinfolk.engine.wire import WireError
from kinfolk.federation.files import read_json, replace_file
from kinfolk.federation.keys import Peer, Pins, Sealer, SiteKey
from kinfolk.federation.tables.masks import Masks, salt_of
from kinfolk.federation.tables.queries import Queries, digest_of
from kinfolk.federation.tables.site_reading import Response

COMPANY = "summed-with.json"  # in the folder of a site


class KeyExchange:
    """The sites with which a site makes secure sums, in one job.

    Parameters
    ----------
    name : str
        Of this site.
    key : SiteKey
        Of this site.
    folder : Path
        Of this site; it remembers there with whom sums of its rows were made.
    rows : str
        The mark of its rows.
    sites : sequence of str, optional
        With whom the owner has agreed to learn; None: with anybody.
    fewest : int, optional
        With how many sites sums may be made anew if others have gone. None: only with the same as before.
    """

    def __init__(
        self, name: str, key: SiteKey, folder: Path, rows: str, sites: Sequence[str] | None, fewest: int | None
    ) -> None:  # fmt: skip
        self.name, self.key, self.folder, self.rows, self.sites, self.fewest = name, key, folder, rows, sites, fewest
        self.masks: Masks | None = None
        self.peers: list[Peer] = []  # all sites, when keys were exchanged
        self._salt = b""
        self._agreed: dict[str, Any] = {}  # with whom sums are made
        self._asked = b""  # a digest of all questions whose answers were masked

    def introduce(self, secret: bytes) -> Response:
        """Begin a job with secure sums: another salt than in any job before, so that no mask is used again."""
        self._salt, self.masks = salt_of(secret), None
        return {"key": self.key.public.hex(), "salt": self._salt.hex()}, {}

    def exchange_keys(self, about: Mapping[str, Any]) -> Response:
        """Accept the keys of all sites, for encrypted messages; from now on sums are masked, if that is wanted.

        ``about``: keys and salts of all sites, in order.
        """
        try:
            known = {
                Peer(str(name), bytes.fromhex(each["key"])): bytes.fromhex(each["salt"])
                for name, each in about["sites"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise WireError("Expected the keys of all sites, got something else.") from error
        own = Peer(self.name, self.key.public)
        others = {peer: salt for peer, salt in known.items() if peer != own}
        if known.get(own) != self._salt or not others or any(peer.name == self.name for peer in others):
            raise WireError("Expected the keys of this site and of others, got something else.")
        self.check_agreed(peer.name for peer in others)
        Pins(self.folder).check(dict(enumerate(others)))
        self.peers = list(known)
        if about.get("masked") is True:
            self._check({peer.name for peer in known})
            self.masks = Masks(self.key, self.name, self._salt, others)
        return {}, {}

    def sealer(self, run: bytes, secret: bytes) -> Sealer:
        """Encrypts messages to other sites, and opens theirs, in one job; sites are numbered in their order."""
        own = Peer(self.name, self.key.public)
        others = {number: peer for number, peer in enumerate(self.peers) if peer != own}
        return Sealer(self.key, self.name, run, others, secret)

    def check_agreed(self, names: Iterable[str]) -> None:
        """Refuse sites that the owner has not agreed to: a coordinator could have made them up."""
        strangers = [] if self.sites is None else [name for name in names if name not in self.sites]
        if strangers:
            raise WireError(f"Expected the agreed sites, got {listing(strangers)} besides: invite anew.")

    def _check(self, names: set[str]) -> None:
        """Masked sums of a table are made with the same sites, or with fewer if the owner has agreed to that."""
        before = read_json(self.folder / COMPANY)
        same_rows = before.get("rows") == self.rows
        known = set(before.get("sites", names)) if same_rows else names
        if names != known and not (names < known and self.fewest is not None and len(names) >= self.fewest):
            raise WireError(
                f"Expected sums with the sites of before ({listing(sorted(known))}), got others: the difference would "
                f"tell the part of one of them. If its owner agrees, remove {COMPANY!r} from the folder of site "
                f"{self.name!r}."
            )
        self._agreed = {"rows": self.rows, "sites": sorted(names)}

    def masked(self, number: int, arrays: Arrays, asked: Queries, digests: Sequence[str]) -> Arrays:
        """The arrays of an answer, masked; before the first one leaves it is kept with whom sums are made.

        Masks follow from all that all sites were asked so far, and from the ``digests`` of what each was asked besides,
        this site's among them. So they cancel only if all sites are asked the same, and a folder that was restored from
        a backup does not put the masks of one message on the answer to another.
        """
        assert self.masks is not None
        here = [peer.name for peer in self.peers].index(self.name)
        if len(digests) != len(self.peers) or digests[here] != digest_of(asked, own=True):
            raise WireError("Expected the digest of what this site is asked among those of all sites, got another.")
        known = [digest_of(asked, own=False), *digests]
        self._asked = hashlib.blake2b(self._asked + "".join(known).encode(), digest_size=32).digest()
        path = self.folder / COMPANY
        if read_json(path) != self._agreed:
            replace_file(path, json.dumps(self._agreed).encode())
        return self.masks.masked(number, arrays, self._asked)
