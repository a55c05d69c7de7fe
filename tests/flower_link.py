"""A SuperLink behind its doors on loopback, in a process of its own or in a thread of this one; nodes that sign."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives import serialization
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from profl.deploy import link
from profl.deploy.connections import BoundedConnection

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
