"""Certificates and keys: an authority for the address of a federation, keys of sites, and that of the coordinator."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kinfolk.checks import InputError
from kinfolk.federation.files import made, replace_file

AUTHORITY_DAYS, SERVER_DAYS = 3650, 730
AUTHORITY, AUTHORITY_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.crt", "server.key"
SIGNATURE = 64  # bytes
HERE = ("127.0.0.1", "localhost")


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Make an authority, and a certificate for a server with these names or addresses, and this machine's own."""
    made(folder)
    key, name = ec.generate_private_key(ec.SECP256R1()), _name("kinfolk federation")
    authority = _authority(key, name)
    server_key = ec.generate_private_key(ec.SECP256R1())
    server = _server(server_key, key, name, list(dict.fromkeys([*hosts, *HERE])))
    replace_file(folder / AUTHORITY_KEY, _private(key), mode=0o600)
    replace_file(folder / AUTHORITY, authority.public_bytes(serialization.Encoding.PEM))
    replace_file(folder / SERVER_KEY, _private(server_key), mode=0o600)
    replace_file(folder / SERVER, server.public_bytes(serialization.Encoding.PEM))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _builder(subject: x509.Name, issuer: x509.Name, public: Any, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _authority(key: Any, name: x509.Name) -> x509.Certificate:
    builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return builder.add_extension(_usage(signs_certificates=True), critical=True).sign(key, hashes.SHA256())


def _server(key: Any, authority_key: Any, authority: x509.Name, hosts: Sequence[str]) -> x509.Certificate:
    builder = _builder(_name(hosts[0]), authority, key.public_key(), SERVER_DAYS)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    for extension, critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False),
        (issuer, False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority_key, hashes.SHA256())


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Any) -> bytes:
    content: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return content


# ---------------------------------------------------------------------- the key that a site signs in with


def make_node_key(path: Path) -> bytes:
    """Make the key that a site signs in with at the SuperLink; its public part, as the SuperLink keeps it."""
    key = ec.generate_private_key(ec.SECP384R1())
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    made(path.parent)
    replace_file(path, content, mode=0o600)
    return public_part(key)


def node_key(path: Path) -> Any:
    """The private key in a file."""
    try:
        return serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected the key of a site in {str(path)!r}, it cannot be read ({error}): ask for a new invitation."
        ) from error


def public_part(key: Any) -> bytes:
    """The public part of a key."""
    content: bytes = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return content


# ---------------------------------------------------------------------- the key of the coordinator


class CoordinatorKey:
    """The coordinator signs what it sends: a SuperLink lets everybody who can reach it send to all sites."""

    def __init__(self, private: ed25519.Ed25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def at(cls, path: Path) -> CoordinatorKey:
        """The key in a file; made at the first call."""
        if not path.exists():
            made(path.parent)
            replace_file(path, ed25519.Ed25519PrivateKey.generate().private_bytes_raw(), mode=0o600)
        try:
            return cls(ed25519.Ed25519PrivateKey.from_private_bytes(path.read_bytes()))
        except ValueError as error:
            raise InputError(
                f"Expected the key of a coordinator in {str(path)!r}, it is damaged: restore it, or invite all sites "
                "anew."
            ) from error

    def signed(self, site: str, blob: bytes) -> bytes:
        """A message to a site, with a signature before it."""
        return self._private.sign(_bound(site, blob)) + blob


@dataclass(frozen=True)
class Contact:
    """What a site has to know of its federation to connect to it; part of an invitation.

    Parameters
    ----------
    address : str
        Host and port of the SuperLink.
    certificate : str
        Of the authority that has signed the SuperLink's own, as PEM.
    coordinator : str
        The public key of the coordinator, in hexadecimal.
    """

    address: str
    certificate: str
    coordinator: str

    @classmethod
    def of(cls, address: str, certificates: Path, coordinator: CoordinatorKey) -> Self:
        """The contact of a federation with these files."""
        return cls(address, (certificates / AUTHORITY).read_text(), coordinator.public.hex())

    def check(self) -> None:
        """Raise ValueError where this is no contact."""
        x509.load_pem_x509_certificate(self.certificate.encode())
        ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.coordinator))
        port = self.address.rpartition(":")[2]
        if not (port.isascii() and port.isdigit()):
            raise ValueError(self.address)

    def opened(self, site: str, content: bytes) -> bytes | None:
        """A message of the coordinator to this site; None: it is from somebody else, or for another site."""
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.coordinator))
        blob = content[SIGNATURE:]
        try:
            public.verify(content[:SIGNATURE], _bound(site, blob))
        except InvalidSignature:
            return None
        return blob


def _bound(site: str, blob: bytes) -> bytes:
    return b"kinfolk request\0" + site.encode() + b"\0" + blob
