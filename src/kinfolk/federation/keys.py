"""Keys of sites: letters between two sites are sealed, so that whoever carries them cannot read or change them.

Every site has a key of X25519. Two sites derive a key for each direction from theirs (HKDF-SHA256), for one run, and
seal with ChaCha20-Poly1305. Who sends, who receives, the run and the number of the request are authenticated along.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinfolk.checks import InputError
from kinfolk.engine.protocol import SiteId
from kinfolk.federation.files import read_json, replace_file

KEY, PINS = "key", "pins.json"
KEY_BYTES = 32
NONCE, TAG, STAMP = 12, 16, struct.Struct("<Q")
OVERHEAD = STAMP.size + NONCE + TAG  # bytes that a seal adds


class SealError(InputError):
    """A letter does not open: it is not from whom it should be, or was changed on its way."""


class Peer(NamedTuple):
    """Another site, and its public key."""

    name: str
    public: bytes


class SiteKey:
    """The private key of a site; it never leaves its folder."""

    def __init__(self, private: Any) -> None:
        self.private = private
        self.public: bytes = private.public_key().public_bytes_raw()

    @classmethod
    def at(cls, folder: Path) -> SiteKey:
        """The key in a folder; made at the first call."""
        x25519 = _cryptography().x25519
        path = folder / KEY
        if not path.exists():
            replace_file(path, x25519.X25519PrivateKey.generate().private_bytes_raw(), mode=0o600)
        try:
            return cls(x25519.X25519PrivateKey.from_private_bytes(path.read_bytes()))
        except ValueError as error:
            raise InputError(
                f"Expected the key of a site in {str(path)!r}, it is damaged: restore it, or remove it and join anew."
            ) from error


def fingerprint_of(public: bytes) -> str:
    """A public key in a form that two people can compare on the telephone.

    >>> fingerprint_of(bytes(32))
    '66687aad f862bd77 6c8fc18b 8e9f8e20'
    """
    digest = hashlib.sha256(public).hexdigest()[:32]
    return " ".join(digest[k : k + 8] for k in range(0, 32, 8))


class Pins:
    """The keys that a site has once accepted; another key under the same name is refused."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / PINS
        self.known: dict[str, str] = read_json(self.path)
        if not all(_is_key(key) for key in self.known.values()):
            raise InputError(
                f"Expected the keys of other sites in {str(self.path)!r}, it is damaged: restore it, or remove it and "
                "compare all fingerprints anew."
            )

    def check(self, peers: Mapping[SiteId, Peer]) -> None:
        """Accept new names with their keys, and known names with known keys."""
        for peer in peers.values():
            known = self.known.get(peer.name)
            if known is not None and known != peer.public.hex():
                raise InputError(
                    f"Expected site {peer.name!r} with the key {fingerprint_of(bytes.fromhex(known))}, got one with "
                    f"{fingerprint_of(peer.public)}: ask them; if they have a new key, remove {peer.name!r} from "
                    f"{str(self.path)!r}."
                )
        if all(peer.name in self.known for peer in peers.values()):
            return
        self.known |= {peer.name: peer.public.hex() for peer in peers.values()}
        replace_file(self.path, json.dumps(self.known, indent=2).encode())


def _is_key(text: Any) -> bool:
    return isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", text) is not None


class Sealer:
    """Seals letters to other sites, and opens theirs, in one run."""

    def __init__(self, key: SiteKey, name: str, run: bytes, peers: Mapping[SiteId, Peer], secret: bytes = b"") -> None:
        self.name, self.peers, self.secret = name, peers, secret
        self.about = run
        chacha = _cryptography().ciphers
        self._to = {site: chacha(_derived(key, peer, self.about, name, peer.name)) for site, peer in peers.items()}
        self._from = {site: chacha(_derived(key, peer, self.about, peer.name, name)) for site, peer in peers.items()}

    def seal(self, site: SiteId, number: int, content: bytes) -> bytes:
        """A letter to a site, closed; ``number``: of the request that it answers."""
        stamp = STAMP.pack(number)
        nonce = self._nonce(stamp, content) if self.secret else os.urandom(NONCE)
        sealed: bytes = self._to[site].encrypt(nonce, content, self._bound(stamp, self.name, self.peers[site].name))
        return stamp + nonce + sealed

    def _nonce(self, stamp: bytes, content: bytes) -> bytes:
        """The same for the same content, so that a process that repeats its work says the same; others differ."""
        return hashlib.blake2b(stamp + content, key=self.secret[:64], digest_size=NONCE).digest()

    def open(self, site: SiteId, letter: bytes) -> tuple[int, bytes]:
        """A letter from a site: the number of the request that it answered, and what is in it."""
        stamp, nonce, sealed = letter[: STAMP.size], letter[STAMP.size : OVERHEAD - TAG], letter[OVERHEAD - TAG :]
        sender = self.peers[site].name
        try:
            content: bytes = self._from[site].decrypt(nonce, sealed, self._bound(stamp, sender, self.name))
        except (_cryptography().InvalidTag, ValueError) as error:
            raise SealError(
                f"Expected a letter that site {sender!r} has sealed for {self.name!r}, got one that does not open."
            ) from error
        return STAMP.unpack(stamp)[0], content

    def _bound(self, stamp: bytes, sender: str, receiver: str) -> bytes:
        return b"\0".join([self.about, stamp, sender.encode(), receiver.encode()])


def _derived(key: SiteKey, peer: Peer, about: bytes, sender: str, receiver: str) -> bytes:
    """The key for letters from one site to another."""
    known = _cryptography()
    try:
        shared = key.private.exchange(known.x25519.X25519PublicKey.from_public_bytes(peer.public))
    except ValueError as error:
        raise InputError(f"Expected a public key of X25519 from site {peer.name!r}, got none.") from error
    both = b"".join(sorted([key.public, peer.public]))
    info = b"\0".join([b"kinfolk letters", about, sender.encode(), receiver.encode(), both])
    derived: bytes = known.hkdf(shared, info)
    return derived


class _Cryptography(NamedTuple):
    x25519: Any
    ciphers: Any
    hkdf: Any
    InvalidTag: Any


def _cryptography() -> _Cryptography:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import x25519
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    except ImportError as error:
        raise InputError(
            "Expected the package cryptography for a federation, it is not installed: "
            'pip install "kinfolk[federation]".'
        ) from error

    def hkdf(shared: bytes, info: bytes) -> bytes:
        return HKDF(hashes.SHA256(), 32, None, info).derive(shared)

    return _Cryptography(x25519, ChaCha20Poly1305, hkdf, InvalidTag)
