"""Who may send how much to a SuperLink: an ASGI app before Flower's, which reads no body before it knows its sender.

Flower buffers a request before it looks at its signature, at any size. Here the headers decide first:

    sender                                            may send
    nodes with a registered key                       what a report of the runs needs (``run.flower.message_size``)
    those with submit.token, and the apps of a run    anything: they run code on the server
    a signature without a registered key, a login     ALLOWANCE; Flower says why it refuses them
    anybody else                                      nothing: refused, and the connection is closed

The public port serves the Fleet interface alone.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import hmac
import logging
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    SUPEREXEC_AUTH_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

from profl.deploy.ports import LOOPBACK
from profl.run.flower.message_size import ALLOWANCE, largest_request, stated_message_bytes

FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
log = logging.getLogger("flwr")
NODE_REQUESTS = 8  # requests of one node whose bodies are read at the same time
MAX_LENGTH_DIGITS = 20  # of a stated length
Headers = dict[bytes, bytes]


class RefusedError(Exception):
    """A request that is answered with a status and a sentence, and not read."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


class Gate:
    """Flower's app behind what this module says.

    Args:
      app: Flower's own ASGI app, with its state.
      control_port: the port of loopback that serves all interfaces.
      token: of those who submit.
      size_file: the file in which runs state how large a node's request may be.
      least: bytes that a node may always send in a request.
    """

    def __init__(self, app: Any, control_port: int, token: str, size_file: Path, least: int = 0) -> None:
        self.app, self.control_port, self.token = app, control_port, token
        self.size_file, self.least = size_file, least
        self.reading: dict[bytes, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(NODE_REQUESTS))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            if not self._open(scope):
                raise RefusedError(404, "")
            headers = dict(scope["headers"])
            node, limit = await asyncio.to_thread(self._sender, scope["path"], headers)
            if node is None:
                receive = await _body(headers, receive, limit)
            else:
                async with self.reading[node]:
                    receive = await _node_body(headers, receive, limit)
        except RefusedError as refused:
            await _answer(send, refused)
        else:
            await self.app(scope, receive, send)

    def _open(self, scope: Any) -> bool:
        """Whether the port that a request came in at serves its path."""
        host, port = scope.get("server") or (None, None)
        return (host == LOOPBACK and port == self.control_port) or scope["path"].startswith(FLEET)

    def _sender(self, path: str, headers: Headers) -> tuple[bytes | None, float]:
        """(the registered key that signed the request, or None; the bytes that its body may have)."""
        if path.startswith(FLEET):
            public_key = signing_key(headers)
            if self.app.state.linkstate_factory.state().get_node_id_by_public_key(public_key) is None:
                return None, ALLOWANCE
            return public_key, max(self.least, largest_request(stated_message_bytes(self.size_file)))
        if path.startswith(CONTROL) and hmac.compare_digest(
            headers.get(b"authorization", b""), f"Bearer {self.token}".encode()
        ):
            return None, math.inf
        if path.startswith(RUNTIME) and SUPEREXEC_AUTH_SIGNATURE_HEADER.encode() not in headers:
            token = headers.get(TASK_TOKEN_HEADER.encode(), b"").decode("latin-1")
            if not token or self.app.state.linkstate_factory.state().get_task_by_token(token) is None:
                raise RefusedError(401, "no token of a run")
            return None, math.inf
        return None, ALLOWANCE


def signing_key(headers: Headers) -> bytes:
    """The public key whose owner has signed the time of a request to the Fleet interface; the body is not signed."""
    try:
        public_key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()], validate=True)
        signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.encode()], validate=True)
        signed_at = headers[TIMESTAMP_HEADER.encode()]
        age = (now() - datetime.datetime.fromisoformat(signed_at.decode())).total_seconds()
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
            raise ValueError("signed at another time")
        if not verify_signature(bytes_to_public_key(public_key), signed_at, signature):
            raise ValueError("another signature")
    except Exception as error:  # whatever stands in the headers
        raise RefusedError(401, "Invalid SuperNode authentication") from error
    return public_key


async def _body(headers: Headers, receive: Any, limit: float) -> Callable[[], Any]:
    """``receive`` with the whole body as its first message; raises before more than ``limit`` bytes are held."""
    stated = headers.get(b"content-length", b"0")
    if not stated.isdigit() or int(stated[:MAX_LENGTH_DIGITS]) > limit:
        raise _too_large(limit)
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise RefusedError(400, "the connection ended before the request did")
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), message.get("more_body", False)
        if size > limit:
            raise _too_large(limit)
    whole = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

    async def from_memory() -> Any:
        return whole.pop() if whole else await receive()

    return from_memory


async def _node_body(headers: Headers, receive: Any, limit: float) -> Callable[[], Any]:
    """As ``_body``; what is too large is thrown away as it comes, so that an honest node reads why it is refused."""
    try:
        return await _body(headers, receive, limit)
    except RefusedError as refused:
        log.warning("a request of a node is refused: %s", refused.why)
        while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
            pass
        raise


def _too_large(limit: float) -> RefusedError:
    return RefusedError(413, f"a request may have {limit:,.0f} bytes here: see --largest-request")


async def _answer(send: Any, refused: RefusedError) -> None:
    """Answer without reading on; the connection is closed, since the rest of a body may be on its way."""
    text = refused.why.encode()
    headers = [(b"content-length", str(len(text)).encode()), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
