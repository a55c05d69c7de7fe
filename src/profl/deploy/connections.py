"""Connections that end when the other side keeps the server waiting.

uvicorn bounds the TLS handshake and the pause after an answer. It waits for ever for a first request, for the rest of
one, and for a client that does not read: whoever opens enough of these takes all of the server's descriptors.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

MAX_WAIT_SECONDS = 60.0  # seconds that a client may take for a request, or to read on; the TLS handshake has as many
LOOKS = 4  # looks at a connection in that time


class BoundedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's connection, closed once the client has kept the server waiting for ``max_wait`` seconds.

    The server waits for the client unless it has a whole request and the client reads what it writes.
    """

    max_wait = MAX_WAIT_SECONDS

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waiting_since = asyncio.get_running_loop().time()
        self._look()

    def connection_lost(self, error: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(error)

    def on_response_complete(self) -> None:
        self._waiting_since = asyncio.get_running_loop().time()
        super().on_response_complete()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        working = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if working and not self.flow.write_paused:
            self._waiting_since = loop.time()
        elif loop.time() - self._waiting_since > self.max_wait:
            self.transport.abort()
            return
        self._watch = loop.call_later(self.max_wait / LOOKS, self._look)


def allow_many_connections() -> None:
    """Raise the number of descriptors that this process may have open to what the system allows it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
