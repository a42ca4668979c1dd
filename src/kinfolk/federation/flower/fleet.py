"""A resident site as a node of Flower: it speaks the Fleet API itself, and runs no code that comes from elsewhere.

The Fleet API is not public: flwr is pinned to one version, and a test runs a federation over it.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Self

from kinfolk.checks import InputError
from kinfolk.federation.files import replace_file
from kinfolk.federation.flower.certificates import Contact, node_key, public_part
from kinfolk.federation.flower.processes import check_flower
from kinfolk.federation.flower.records import blob_in, content_of

log = logging.getLogger(__name__)
BEAT, HEARTBEAT = 8.0, 30.0  # seconds between two heartbeats, and what the SuperLink is told: away after twice that
RETRY = 1.0  # seconds between two attempts to connect
SOON = 0.05  # seconds until an object that is on its way is asked for again


class Received(NamedTuple):
    """A message of Flower, and the blob in it."""

    message: Any
    blob: bytes


class Fleet:
    """The connection of a site to the SuperLink.

    Parameters
    ----------
    contact : Contact
        Of the federation.
    key : Path
        The file with the key that the site signs in with.
    memory : Path
        A file that keeps the number of the node: a process that died without a goodbye is signed off by its successor.
    """

    def __init__(self, contact: Contact, key: Path, memory: Path) -> None:
        check_flower()
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        self.contact, self.memory = contact, memory
        private = node_key(key)
        self._public = public_part(private)
        who = [RuntimeVersionHttpInterceptor("SuperNode"), NodeAuthHttpInterceptor(private, private.public_key())]
        self._client = FleetHttpClient.from_server_address(
            contact.address, False, contact.certificate.encode(), interceptors=who
        )
        self._node: Any = None
        self._beating = threading.Event()

    # ------------------------------------------------------------------ signing in and out

    def connect(self, stop: threading.Event, patience: float, tell: Callable[[str], None]) -> bool:
        """Sign in; tried again for ``patience`` seconds. False: it was stopped before."""
        deadline, told = time.monotonic() + patience, False
        self._beating.set()
        while not stop.is_set():
            try:
                self._sign_in()
                return True
            except Exception as error:  # of HTTP, or of the SuperLink
                self._refuse_for_good(error)
                if time.monotonic() > deadline:
                    raise InputError(self._unreachable(patience, error)) from error
                if not told:
                    tell(f"The SuperLink at {self.contact.address} cannot be reached: trying again.")
                    told = True
            stop.wait(RETRY)
        return False

    def _sign_in(self) -> None:
        from flwr.proto.fleet_pb2 import ActivateNodeRequest
        from flwr.proto.node_pb2 import Node

        self._sign_off_predecessor()
        request = ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        replace_file(self.memory, str(self._node.node_id).encode())
        self._beating = threading.Event()
        threading.Thread(target=self._beat, args=(self._node, self._beating), daemon=True).start()

    def _sign_off_predecessor(self) -> None:
        if self.memory.exists():
            with contextlib.suppress(Exception):  # it has said goodbye, or the SuperLink has been started anew
                self._deactivate(int(self.memory.read_text()))

    def _refuse_for_good(self, error: Exception) -> None:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(cause):
                raise InputError(
                    f"Expected the certificate of this federation at {self.contact.address}, got another: ask its "
                    "operator for a new invitation."
                ) from error
            cause = cause.__cause__ or cause.__context__

    def _unreachable(self, patience: float, error: Exception) -> str:
        response = getattr(error, "response", None)
        if response is not None:
            return (
                f"Expected a key that the SuperLink at {self.contact.address} knows, it refuses that of this site "
                f"({response.status_code}): another process uses it, or the site is not invited any more; ask."
            )
        return (
            f"Expected the SuperLink at {self.contact.address}, it cannot be reached since {patience:.0f} seconds "
            f"({error}): ask its operator, and start the site again; it goes on where it was."
        )

    def _beat(self, node: Any, ended: threading.Event) -> None:
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest

        while not ended.wait(BEAT):
            with contextlib.suppress(Exception):  # the next message notices
                self._client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT))

    def _deactivate(self, number: int) -> None:
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest

        self._client.DeactivateNode(DeactivateNodeRequest(node_id=number))

    def sign_off(self) -> None:
        """Say goodbye, so that another process can sign in at once."""
        self._beating.set()
        if self._node is not None:
            with contextlib.suppress(Exception):  # it is away: nobody to say goodbye to
                self._deactivate(self._node.node_id)
            self._node = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sign_off()
        self._client.close()

    # ------------------------------------------------------------------ messages

    def receive(self) -> Received | None:
        """The next message; None: there is none now."""
        from flwr.app import Message
        from flwr.common.serde import message_from_proto
        from flwr.proto.fleet_pb2 import PullMessagesRequest
        from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree

        found = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not found.messages_list:
            return None
        head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        pull, confirm = self._pulling(head.metadata.run_id)
        message = pull_and_inflate_object_from_tree(
            tree, pull, confirm, return_type=Message, initial_backoff=SOON, max_tries_per_object=None
        )
        message.metadata.__dict__["_message_id"] = tree.object_id  # it is not part of what travels
        return Received(message, blob_in(message.content) if message.has_content() else b"")

    def _pulling(self, run: int) -> tuple[Callable[[str], bytes], Callable[[str], None]]:
        from flwr.supercore.inflatable.inflatable_protobuf_utils import (
            make_confirm_message_received_fn_protobuf,
            make_pull_object_fn_protobuf,
        )

        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, run)
        return pull, make_confirm_message_received_fn_protobuf(self._client.ConfirmMessageReceived, self._node, run)

    def reply(self, received: Received, blob: bytes) -> None:
        """Answer a message."""
        from flwr.app import Message
        from flwr.app.message import remove_content_from_message
        from flwr.common.serde import message_to_proto
        from flwr.proto.fleet_pb2 import PushMessagesRequest
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
        from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
        from flwr.supercore.inflatable.inflatable_utils import push_objects

        message = Message(content_of(blob), reply_to=received.message)
        message.metadata.__dict__["_message_id"] = message.object_id
        run = message.metadata.run_id
        pushed = self._client.PushMessages(
            PushMessagesRequest(
                node=self._node,
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message)],
                clientapp_runtime_list=[0.0],
            )
        )
        push = make_push_object_fn_protobuf(self._client.PushObject, self._node, run, pushed.session_id)
        push_objects(get_all_nested_objects(message), push, object_ids_to_push=set(pushed.objects_to_push))
