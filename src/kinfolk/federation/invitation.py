"""Invitations: one file for a site, with all it needs to take part. It is a secret of that site: it holds its key."""

from __future__ import annotations

import datetime
import json
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinfolk.checks import InputError, listing
from kinfolk.federation.agreement import Agreement, as_text
from kinfolk.federation.files import made, read_json, replace_file
from kinfolk.federation.flower.certificates import Contact, make_node_key

FORMAT = 1
MOST_DAYS = 3_650
DAYS = 30  # until an invitation that was not used is of no use
INVITED, SUFFIX = "invited.json", ".invite"
HEAD = "# An invitation to a federation of kinfolk. Keep it secret: whoever has it can take part in your place.\n\n"
FIELDS = {"format": int, "site": str, "expires": str, "key": str, "contact": dict, "agreement": dict}


@dataclass(frozen=True)
class Invitation:
    """What a site is given to take part.

    Parameters
    ----------
    site : str
        The name of the site.
    expires : datetime
        Until when it can be used for the first time.
    key : str
        The private key that the site signs in with.
    contact : Contact
        Where the federation is, and how to know it.
    agreement : Agreement
        What is asked of the site.
    """

    site: str
    expires: datetime.datetime
    key: str
    contact: Contact
    agreement: Agreement

    def write(self, path: Path) -> None:
        """Write the file, for its owner alone; of what is there only an invitation is replaced."""
        if path.exists() and not (path.is_file() and path.read_bytes().startswith(HEAD.encode())):
            raise InputError(f"Expected a new file, {str(path)!r} holds something else: choose another with --out.")
        content = {
            "format": FORMAT, "site": self.site, "expires": self.expires.isoformat(timespec="seconds"),
            "key": self.key, "contact": asdict(self.contact), "agreement": self.agreement.to_toml(),
        }  # fmt: skip
        replace_file(path, (HEAD + as_text(content)).encode(), mode=0o600)

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """The invitation in a file."""
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError(f"Expected an invitation, found no file {str(path)!r}: check the name.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, IsADirectoryError, RecursionError) as error:
            raise InputError(
                f"Expected an invitation in {str(path)!r}, got something else: ask for it again."
            ) from error
        if found.get("format") != FORMAT or any(not isinstance(found.get(name), kind) for name, kind in FIELDS.items()):
            raise InputError(
                f"Expected an invitation of this version of kinfolk in {str(path)!r}, got something else: ask for a "
                "new one."
            )
        try:
            contact, expires = Contact(**found["contact"]), datetime.datetime.fromisoformat(found["expires"])
            contact.check()
            if expires.tzinfo is None:
                raise ValueError("a time without a zone")
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"Expected a whole invitation in {str(path)!r}, it is damaged: ask for it again."
            ) from error
        agreement = Agreement.of(found["agreement"], str(path))
        if found["site"] not in agreement.sites:
            raise InputError(
                f"Expected an invitation of one of its sites in {str(path)!r}, got one for {found['site']!r}."
            )
        return cls(found["site"], expires, found["key"], contact, agreement)

    def check_time(self) -> None:
        """Refuse an invitation that has expired."""
        if datetime.datetime.now(datetime.UTC) > self.expires:
            raise InputError(
                f"Expected an invitation that is valid, that of site {self.site!r} has expired on "
                f"{self.expires:%Y-%m-%d}: ask the operator for a new one."
            )


# ---------------------------------------------------------------------- the operator's list


@dataclass(frozen=True)
class Invited:
    """What the operator keeps of an invitation."""

    public: str  # the public part of the key that the site signs in with
    expires: str
    joined: bool = False  # whether the site has been seen

    def check(self) -> None:
        """Raise ValueError where this is none."""
        if datetime.datetime.fromisoformat(self.expires).tzinfo is None or not isinstance(self.public, str):
            raise ValueError("no invitation")

    @property
    def admitted(self) -> bool:
        """Whether the site may sign in."""
        return self.joined or datetime.datetime.now(datetime.UTC) <= datetime.datetime.fromisoformat(self.expires)


def read_invited(folder: Path) -> dict[str, Invited]:
    """Who has been invited."""
    path = folder / INVITED
    try:
        invited = {name: Invited(**each) for name, each in read_json(path).items()}
        for each in invited.values():
            each.check()
        return invited
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"Expected the list of invited sites in {str(path)!r}, it is damaged: restore it.") from error


def write_invited(folder: Path, invited: Mapping[str, Invited]) -> None:
    """Keep who has been invited."""
    content = {name: asdict(each) for name, each in invited.items()}
    replace_file(folder / INVITED, json.dumps(content, indent=1).encode())


def invite(
    folder: Path, agreement: Agreement, site: str, contact: Contact, path: Path, days: float = DAYS
) -> Invitation:
    """Write the invitation of a site; then one that it had before is of no use any more."""
    if site not in agreement.sites:
        raise InputError(f"Expected a site of the federation, one of {listing(agreement.sites, 12)}, got {site!r:.60}.")
    if not 0 <= days <= MOST_DAYS:
        raise InputError(f"Expected at most {MOST_DAYS:,} days for an invitation, got {days:g}.")
    expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    with tempfile.TemporaryDirectory(dir=made(folder)) as place:
        public = make_node_key(Path(place) / "key")
        key = (Path(place) / "key").read_text()
    known, invitation = read_invited(folder), Invitation(site, expires, key, contact, agreement)
    invitation.write(path)
    write_invited(folder, {**known, site: Invited(public.decode(), expires.isoformat(timespec="seconds"))})
    return invitation


def admitted_keys(folder: Path, agreement: Agreement) -> dict[str, bytes]:
    """For every site the key that it may sign in with; refused where one has no invitation, or an expired one."""
    invited: dict[str, Any] = read_invited(folder)
    missing = [name for name in agreement.sites if name not in invited]
    if missing:
        raise InputError(
            f"Expected an invitation for every site, {listing(missing)} has none: kinfolk federation invite "
            f"{folder} {missing[0]}."
        )
    late = [name for name in agreement.sites if not invited[name].admitted]
    if late:
        raise InputError(
            f"Expected invitations that are used in time, that of {listing(late)} has expired: invite anew."
        )
    return {name: invited[name].public.encode() for name in agreement.sites}
