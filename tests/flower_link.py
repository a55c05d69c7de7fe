"""A SuperLink behind its doors on loopback, in a process of its own or in a thread of this one; nodes that sign."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import uvicorn
from cryptography.hazmat.primitives import serialization
from flwr.app import Context, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, SUPERLINK_NODE_ID, TIMESTAMP_HEADER, Status
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, inflate_object_from_contents, pull_objects
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from profl.deploy import link
from profl.deploy.connections import BoundedConnection
from profl.deploy.ports import free_port

PROTOBUF = {"content-type": "application/protobuf", "accept": "application/protobuf"}


@contextmanager
def made_app(keys: Path, folder: Path, control_port: int, largest_request: int = 0) -> Iterator[Any]:
    """The SuperLink's app; argv and environment are as before afterwards."""
    argv, environment = sys.argv, dict(os.environ)
    try:
        yield link.make_app(keys, folder, control_port, largest_request)[0]
    finally:
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)


def private_key(path: Path) -> Any:
    return serialization.load_ssh_private_key(path.read_bytes(), None)


def register(app: Any, key: Path) -> int:
    """The id of a node with this key, registered at the SuperLink."""
    public = public_key_to_bytes(private_key(key).public_key())
    state = app.app.state.linkstate_factory.state()
    return int(state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, public, 0))


def signed(key: Path, **changed: str) -> dict[str, str]:
    """The headers of a node's request."""
    private, timestamp = private_key(key), now().isoformat()
    signature = sign_message(private, timestamp.encode("ascii"))
    own = {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public_key_to_bytes(private.public_key())).decode(),
        TIMESTAMP_HEADER: timestamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(signature).decode(),
    }
    return PROTOBUF | own | changed


def call(app: Any, path: str, headers: dict[str, str], chunks: Iterator[bytes], port: int = 9500) -> tuple[int, int]:
    """(the status of the answer, the bytes that the app took of the body) for a request of these chunks."""
    taken, status = 0, 0
    pairs = [(name.encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": pairs, "server": ("127.0.0.1", port), "client": ("127.0.0.1", 1), "scheme": "https"}
    scope |= {"http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": ""}

    async def receive() -> dict[str, Any]:
        nonlocal taken
        chunk = next(chunks, None)
        taken += len(chunk or b"")
        return {"type": "http.request", "body": chunk or b"", "more_body": chunk is not None}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    asyncio.run(app(scope, receive, send))
    return status, taken


@contextmanager
def served(app: Any, port: int, max_wait: float, **settings: Any) -> Iterator[None]:
    """An app that is served on loopback, by a thread."""
    connection = type("Connection", (BoundedConnection,), {"max_wait": max_wait})
    config = uvicorn.Config(app, port=port, http=connection, lifespan="off", log_config=None, **settings)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


class RealLink:
    """A SuperLink of this process on loopback, without TLS, and one run at it with the grid of its server's side.

    All is Flower's own but for the processes: database, interfaces, signatures, the way of messages and objects.
    """

    def __init__(self, keys: Path, folder: Path) -> None:
        self.keys, self.port = keys, free_port()
        self.stack = ExitStack()
        self.app = self.stack.enter_context(made_app(keys, folder, self.port))
        self.state = self.app.app.state.linkstate_factory.state()
        self.nodes: list[RealNode] = []

    def __enter__(self) -> RealLink:
        self.stack.enter_context(served(self.app, self.port, 60.0))
        federation = self.state.federation_manager
        federation.ensure_default_federations_exist(flwr_aid=NOOP_FLWR_AID)
        (own, *_) = federation.get_federations(flwr_aid=NOOP_FLWR_AID)
        run = self.state.create_run(None, None, "0" * 64, {}, own.id, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        (task,) = self.state.get_tasks(statuses=[Status.PENDING])
        token = self.state.claim_task(task.task_id)
        assert token is not None
        assert self.state.activate_task(task.task_id)
        self.run = self.state.get_run_info(run_ids=[run])[0]
        self.grid = HttpGrid(f"127.0.0.1:{self.port}", insecure=True, token=token)
        self.grid.set_run(self.run)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run, SUPERLINK_NODE_ID
        return self

    def __exit__(self, *_: Any) -> None:
        for node in self.nodes:
            node.stop()
        self.grid.close()
        self.stack.close()

    def add(self, number: int, app: Any, kind: type[RealNode] | None = None) -> RealNode:
        """A node for a client, with its key, that answers from a thread of its own."""
        register(self.app, self.keys / f"client-{number}")
        node = (kind or RealNode)(self, number, app)
        self.nodes.append(node)
        return node


class RealNode:
    """A node that runs an app in a thread; what it sends can be changed by those that derive from it."""

    pause = 0.1  # seconds between two looks for orders

    def __init__(self, link: RealLink, number: int, app: Any) -> None:
        key = private_key(link.keys / f"client-{number}")
        signing: list[Any] = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        self.client = FleetHttpClient.from_server_address(f"127.0.0.1:{link.port}", True, None, interceptors=signing)
        self.public = public_key_to_bytes(key.public_key())
        self.link, self.number, self.app = link, number, app
        self.over = threading.Event()
        self.begin()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def begin(self) -> None:
        """Begin a session with the SuperLink, with nothing in memory."""
        activate = ActivateNodeRequest(public_key=self.public, heartbeat_interval=300)
        self.node = Node(node_id=self.client.ActivateNode(activate).node_id)
        config = {"partition-id": self.number, "key": str(self.link.keys / f"client-{self.number}")}
        self.context = Context(1, self.node.node_id, config, RecordDict(), {})

    def die(self, seconds: float) -> None:
        """Lose what was pulled and not answered, and come back after so many seconds."""
        self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        time.sleep(seconds)
        self.begin()
        raise Died

    def stop(self) -> None:
        """End the thread."""
        self.over.set()
        self.thread.join(10)

    def _work(self) -> None:
        while not self.over.wait(self.pause):
            with suppress(httpx.HTTPError, ObjectPushError, Died):
                response = self.client.PullMessages(PullMessagesRequest(node=self.node))
                for told, tree in zip(response.messages_list, response.message_object_trees, strict=True):
                    message = self.fetch(told.metadata.message_id, tree)
                    if not self.over.is_set():
                        self.send(message, self.answer(message))

    def fetch(self, message_id: str, tree: ObjectTree) -> Message:
        run = self.link.run.run_id
        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, run)
        contents = pull_objects([one.object_id for one in iterate_object_tree(tree)], pull)
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=message_id)
        self.client.ConfirmMessageReceived(request)
        message: Any = inflate_object_from_contents(message_id, contents)
        message.metadata.__dict__["_message_id"] = message_id
        return cast(Message, message)

    def answer(self, message: Message) -> Message:
        with APPS:
            try:
                return cast(Message, self.app(message, self.context))
            except Exception as error:
                return Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)

    def send(self, message: Message, reply: Message) -> None:
        """Push the honest reply."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = {name: thing.deflate() for name, thing in get_all_nested_objects(reply).items()}
            self.push(reply, get_object_tree(reply), objects)

    def told(self, reply: Message) -> Any:
        """The message without its content, as it is announced."""
        return message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)

    def push(self, reply: Message, tree: ObjectTree, objects: dict[str, bytes]) -> None:
        """Announce the reply with the tree of its objects, and send these."""
        told = self.told(reply)
        request = PushMessagesRequest(node=self.node, messages_list=[told], message_object_trees=[tree])
        response = self.client.PushMessages(request)
        wanted = set(response.objects_to_push)
        store = make_push_object_fn_protobuf(
            self.client.PushObject, self.node, self.link.run.run_id, response.session_id
        )
        for name, content in objects.items():
            if name in wanted:
                store(name, content)


class Died(Exception):
    """The node's process has ended and begun again."""


APPS = threading.Lock()  # one app at a time, as in a process of its own
