"""The operator's side: a SuperLink with TLS that knows the keys of all sites, and runs of the app on it.

Runs are started, and sites registered, from the machine of the SuperLink alone; see ``gate``.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from kinfolk.checks import InputError
from kinfolk.federation.files import locked, made, replace_file
from kinfolk.federation.flower import gate
from kinfolk.federation.flower.certificates import AUTHORITY, SERVER, SERVER_KEY, make_certificates
from kinfolk.federation.flower.coordinator import OUTCOME
from kinfolk.federation.flower.processes import Program, check_flower, check_port, environment

CERTIFICATES, HOME, LOG, CONNECTION = "certificates", "flower", "superlink.log", "kinfolk"
APP = Path(__file__).parent / "app"
STARTING = 180.0  # seconds until a SuperLink must answer
LOOK = 1.0
CONFIG = """\
[superlink]
default = "{name}"

[superlink.{name}]
address = "{address}"
root-certificates = {certificate}
"""


class SuperLink:
    """A SuperLink that ends with this process.

    Parameters
    ----------
    folder : Path
        Of the federation; certificates are made there if there are none, and so is the folder of Flower.
    port : int
        For sites and for ``flwr``.
    nodes : mapping of str to bytes
        For the name of every site the public key that it signs in with; others are refused.
    host : str
        Address of this machine to listen at; by default only processes on it can connect.
    """

    def __init__(self, folder: Path, port: int, nodes: Mapping[str, bytes], host: str = "127.0.0.1") -> None:
        check_flower()
        check_port(host, port)
        self.folder, self.home = folder, made(folder / HOME)
        self.address = f"{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"
        self._lock = locked(self.home)
        try:
            self._set_up(host)
            self.program = Program(self._command(host, port), self.home, self.home / LOG)
        except BaseException:
            self._lock.close()
            raise
        try:
            self._client = self._connected()
            self.register(nodes)
        except BaseException:
            self.close()
            raise

    def _set_up(self, host: str) -> None:
        certificates = self.folder / CERTIFICATES
        if not (certificates / SERVER).exists():
            make_certificates(certificates, [] if host in ("0.0.0.0", "::") else [host])
        quoted = json.dumps(str((certificates / AUTHORITY).resolve()))
        config = CONFIG.format(name=CONNECTION, address=self.address, certificate=quoted)
        replace_file(self.home / "config.toml", config.encode())

    def _command(self, host: str, port: int) -> list[str]:
        tls = self.folder / CERTIFICATES
        return [
            sys.executable, gate.__file__, "--host", host, "--port", str(port), "--enable-supernode-auth",
            "--disable-runtime-dependency-installation", "--ssl-ca-certfile", str(tls / AUTHORITY),
            "--ssl-certfile", str(tls / SERVER), "--ssl-keyfile", str(tls / SERVER_KEY),
        ]  # fmt: skip

    def _connected(self) -> Any:
        """A client for the operator, when the SuperLink answers."""
        from flwr.proto.control_pb2 import ListNodesRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

        certificate = (self.folder / CERTIFICATES / AUTHORITY).read_bytes()
        client = ControlHttpClient.from_server_address(
            self.address, False, certificate, interceptors=[RuntimeVersionHttpInterceptor("flwr CLI")]
        )
        deadline = time.monotonic() + STARTING
        while True:
            try:
                client.ListNodes(ListNodesRequest())
                return client
            except Exception as error:  # it is not there yet
                if not self.program.running or time.monotonic() > deadline:
                    raise InputError(
                        f"Expected a SuperLink at {self.address}, it did not start: see {str(self.program.log)!r}; it "
                        f"ends with: {self.program.last_words()}"
                    ) from error
            time.sleep(LOOK)

    # ------------------------------------------------------------------ sites and runs

    def register(self, nodes: Mapping[str, bytes]) -> None:
        """Let these sites sign in."""
        from flwr.proto.control_pb2 import RegisterNodeRequest

        for name, public in nodes.items():
            self._client.RegisterNode(RegisterNodeRequest(public_key=public, name=name))

    def online(self) -> list[str]:
        """The names of the sites that are signed in."""
        from flwr.proto.control_pb2 import ListNodesRequest

        return [node.name for node in self._client.ListNodes(ListNodesRequest()).nodes_info if node.status == "online"]

    def start_run(self, *, end_sites: bool = False) -> int:
        """Let the app run the plan of the folder, with ``flwr run``; the number of the run."""
        (self.folder / OUTCOME).unlink(missing_ok=True)
        config = f"folder={json.dumps(str(self.folder.resolve()))} end-sites={str(end_sites).lower()}"
        flwr = shutil.which("flwr", path=environment(self.home)["PATH"]) or "flwr"
        words = [flwr, "run", str(APP), CONNECTION, "--run-config", config, "--format", "json"]
        done = subprocess.run(
            words, env=environment(self.home), capture_output=True, text=True, check=False, timeout=STARTING
        )
        found = _last_json(done.stdout)
        if not found.get("success"):
            raise InputError(f"Expected a run to start, flwr run has failed: {(done.stdout + done.stderr).strip()}")
        return int(found["run-id"])

    def wait_for_run(self, number: int, seconds: float, look: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Wait for the end of a run, and call ``look`` meanwhile; what its coordinator has left in ``outcome.json``."""
        deadline = time.monotonic() + seconds
        while (status := self._status(number)).status != "finished":
            if time.monotonic() > deadline:
                raise InputError(f"Expected the end of the run within {seconds:.0f} seconds: ask again, or stop it.")
            if not self.program.running:
                raise InputError(f"The SuperLink has ended: {self.program.last_words()}")
            look()
            time.sleep(LOOK)
        path = self.folder / OUTCOME
        outcome: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        if "stopped" not in outcome:
            raise InputError(outcome.get("error") or f"The run has ended ({status.sub_status}): {status.details}")
        return outcome

    def _status(self, number: int) -> Any:
        from flwr.proto.control_pb2 import ListRunsRequest

        return self._client.ListRuns(ListRunsRequest(run_id=number)).run_dict[number].status

    def close(self) -> None:
        """Stop the SuperLink and all that it has started."""
        with contextlib.suppress(AttributeError):
            self._client.close()
        self.program.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _last_json(text: str) -> dict[str, Any]:
    """The object of JSON at the end of a text."""
    start = text.find("{")
    with contextlib.suppress(ValueError):
        found: dict[str, Any] = json.loads(text[start:])
        return found
    return {}
