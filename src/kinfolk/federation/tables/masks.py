"""Secure sums: the coordinator reads the sum over sites of what they send, and of a single site nothing.

Two sites derive from their keys (X25519, HKDF-SHA256) numbers that nobody else knows, for each answer new ones. The one
adds them to what it sends, the other subtracts them; in the sum they cancel. Numbers are whole multiples of 2⁻⁶⁴,
modulo 2¹²⁸: what is masked is uniform, whatever it is, and sums are exact. All sites have to answer.

After K. Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), without their
second mask, which is needed where the sum has to be made without sites that are away.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.checks import InputError
from kinfolk.federation.keys import Peer, SiteKey
from kinfolk.typing import Floats

Words = npt.NDArray[np.uint64]  # (2, ...): multiples of 1, and of 2⁻⁶⁴, modulo 2¹²⁸
SALT = 16  # bytes
LARGEST = 2.0**62
HALF = np.uint64(2**63)


def to_words(values: Any) -> Words:
    """Numbers as multiples of 2⁻⁶⁴, modulo 2¹²⁸; smaller parts are cut off.

    >>> to_words(np.array([1.5, -1.0])).tolist()
    [[1, 18446744073709551615], [9223372036854775808, 0]]
    """
    given = np.asarray(values, dtype=np.float64)
    if not (np.abs(given) < LARGEST).all():
        raise InputError(f"Expected numbers below {LARGEST:g} for a secure sum, got larger ones or NaN.")
    size = np.abs(given)
    whole = np.floor(size)
    words = np.stack([whole.astype(np.uint64), ((size - whole) * 2.0**64).astype(np.uint64)])
    return np.where(given < 0, negative(words), words)


def to_numbers(words: Words) -> Floats:
    """The numbers that words stand for.

    >>> to_numbers(added(to_words(np.array([0.1])), to_words(np.array([-3.25])))).tolist()
    [-3.15]
    """
    below = words[0] >= HALF
    whole, part = np.where(below, negative(words), words).astype(np.float64)
    return np.asarray(np.where(below, -1.0, 1.0) * (whole + part * 2.0**-64))


def negative(words: Words) -> Words:
    """−x modulo 2¹²⁸."""
    return np.concatenate([~words[:1] + (words[1:] == 0), ~words[1:] + np.uint64(1)])


def added(first: Words, second: Words) -> Words:
    """x + y modulo 2¹²⁸."""
    low = first[1:] + second[1:]  # slices, as single numbers would warn when they wrap
    return np.concatenate([first[:1] + second[:1] + (low < first[1:]), low])


def summed(parts: Iterable[Words]) -> Floats:
    """The sum of what sites sent, as numbers."""
    first, *others = parts
    for each in others:
        first = added(first, each)
    return to_numbers(first)


class Masks:
    """What a site adds to its answers, by a key with every other site.

    Parameters
    ----------
    key : SiteKey
        Of this site.
    name : str
        Of this site.
    salt : bytes
        Fresh for every job, so that masks are never used twice, whatever a coordinator asks.
    peers : mapping of Peer to bytes
        The other sites, with their salts.
    """

    def __init__(self, key: SiteKey, name: str, salt: bytes, peers: Mapping[Peer, bytes]) -> None:
        self._keys = {peer.name: _derived(key, name, salt, peer, theirs) for peer, theirs in peers.items()}
        self.name = name

    def masked(self, number: int, arrays: Mapping[str, Any], asked: bytes = b"") -> dict[str, Words]:
        """The arrays of an answer, masked; ``number``: of the question, each of which is answered once.

        ``asked``: a digest of what was asked so far, the same at all sites; other questions get other masks.
        """
        out = {}
        keys = {peer: hashlib.blake2b(asked, key=key, digest_size=32).digest() for peer, key in self._keys.items()}
        for place, (name, values) in enumerate(arrays.items()):
            words = to_words(values)
            for peer, key in keys.items():
                mask = _stream(key, number, place, words.shape)
                words = added(words, mask if self.name < peer else negative(mask))
            out[name] = words
        return out


def salt_of(secret: bytes) -> bytes:
    """Bytes that everybody may know, from a secret of the job; the same after a crash."""
    return hashlib.blake2b(secret, digest_size=SALT, person=b"kinfolk salt").digest()


def _derived(key: SiteKey, name: str, salt: bytes, peer: Peer, theirs: bytes) -> bytes:
    """The key of the masks between two sites, the same at both."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import x25519
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    try:
        shared = key.private.exchange(x25519.X25519PublicKey.from_public_bytes(peer.public))
    except ValueError as error:
        raise InputError(f"Expected a public key of X25519 from site {peer.name!r}, got none.") from error
    both = sorted([(name.encode(), key.public, salt), (peer.name.encode(), peer.public, theirs)])
    info = b"\0".join([b"kinfolk masks", *(part for each in both for part in each)])
    derived: bytes = HKDF(hashes.SHA256(), 32, None, info).derive(shared)
    return derived


def _stream(key: bytes, number: int, place: int, shape: tuple[int, ...]) -> Words:
    """Uniform words that only who has the key knows."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    nonce = struct.pack("<IQI", 0, number, place)
    size = 8 * int(np.prod(shape))
    drawn = Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(size))
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(shape)
