"""Which node is which client: node ids are random, so each new node is asked once who it is and what it runs.

Where clients are bound to keys, the answer is signed (``identity``). A node with an invalid answer is refused by name;
the others go on. If two nodes claim the same client, the one that claimed it first and still answers keeps it.
"""

from __future__ import annotations

import secrets
import time
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from profl.checks import InputError, words
from profl.run.flower.federation import Federation
from profl.run.flower.identity import Identities
from profl.storage.fingerprint import difference

PREFIX = "fingerprint "
MAX_ANSWER_SECONDS = 60.0  # seconds that a node may take to say who it is, at most: a new process has to start there
NOBODY = -1  # in the place of a client's number where a node states none


class Nodes:
    """The nodes that are connected, by client."""

    def __init__(self, federation: Federation, wait: float, identities: Identities | None = None) -> None:
        self.federation, self.wait, self.answer_seconds = federation, wait, min(wait, MAX_ANSWER_SECONDS)
        self.identities = identities
        self.connected: dict[int, int] = {}  # client -> node
        self.refusals: dict[int, str] = {}  # node -> why it cannot be used
        self.failed: set[int] = set()  # those of them that may answer when they are asked again
        self.rivals: dict[int, int] = {}  # node -> the client whose place was taken
        self._news: list[tuple[int, str]] = []
        self._reported: set[tuple[int, str]] = set()

    def find(self, grid: Grid, participants: list[int], everyone: bool) -> dict[int, int]:
        """{client: node} for the connected clients; waits for everyone, or for as many as a round needs."""
        needed = self.federation.clients if everyone else min(self.federation.config.min_reports, len(participants))
        deadline = time.monotonic() + self.wait
        self._ask_again(self.failed)
        self.failed = set()
        while True:
            self._look(grid)
            here = self.connected if everyone else [client for client in participants if client in self.connected]
            if len(here) >= needed:
                return self.connected
            if len(self.connected) + len(self.refusals) >= self.federation.clients and not self.connected:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if not self.connected:
            reasons = "; ".join(f"node {node}: {why}" for node, why in self.refusals.items())
            raise InputError(f"no client can be used after {self.wait:g} s. {reasons or 'No node is connected'}")
        return self.connected

    def forget(self, client: int) -> None:
        """Drop a client whose node has failed; its next node is asked again."""
        self.connected.pop(client, None)

    def take_news(self) -> list[tuple[int, str]]:
        """(client, reason) for every node that was refused since the last call, each once."""
        news, self._news = self._news, []
        return news

    def _look(self, grid: Grid) -> None:
        """Update who is connected, and ask new nodes who they are."""
        present = set(grid.get_node_ids())
        self.connected = {client: node for client, node in self.connected.items() if node in present}
        self.refusals = {node: why for node, why in self.refusals.items() if node in present}
        self._ask_again({node for node, client in self.rivals.items() if client not in self.connected})
        new = present - set(self.connected.values()) - set(self.refusals)
        for node, client in sorted(self._ask(grid, sorted(new)).items(), key=lambda pair: (pair[1], pair[0])):
            holder = self.connected.get(client)
            if holder is not None and self._ask(grid, [holder]).get(holder) == client:
                self._refuse(node, client, f"says that it is client {client}, which node {holder} is")
                self.rivals[node] = client
            else:
                self.connected[client] = node

    def _ask_again(self, nodes: set[int]) -> None:
        for node in nodes:
            self.refusals.pop(node, None)
            self.rivals.pop(node, None)

    def _refuse(self, node: int, client: int, why: Any) -> None:
        self.refusals[node] = why = words(why)
        if (node, why) not in self._reported:
            self._reported.add((node, why))
            self._news.append((client, f"node {node} was refused: it {why}"))

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, int]:
        """{node: client} for the nodes that answer, prove who they are, and run the same problem."""
        nonces = {node: secrets.token_hex(16) for node in nodes}
        messages = [
            Message(
                RecordDict({"hello": ConfigRecord({"nonce": nonces[node]})}),
                dst_node_id=node,
                message_type=MessageType.QUERY,
                ttl=self.answer_seconds,
            )
            for node in nodes
        ]
        replies = list(grid.send_and_receive(messages, timeout=self.answer_seconds)) if nodes else []
        by_id = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        clients: dict[int, int] = {}
        for reply in replies:
            node = by_id.pop(reply.metadata.reply_to_message_id, None)  # the first answer counts
            if node is None:
                continue
            if reply.has_error():
                self._refuse(node, NOBODY, f"failed: {reply.error.reason or f'error {reply.error.code}'}")
                self.failed.add(node)
                continue
            client = NOBODY
            try:
                content = reply.content
                client = _client(content, self.federation.clients)
                self._check(content["hello"], client, nonces[node], node)
            except InputError as error:
                self._refuse(node, client, error)
            except Exception as error:  # an invalid answer must harm no other node
                self._refuse(node, client, f"answered with nonsense ({type(error).__name__}: {error})")
            else:
                clients[node] = client
        return clients

    def _check(self, hello: Any, client: int, nonce: str, node: int) -> None:
        if self.identities is not None:
            self.identities.check(client, nonce, node, hello.get("signature"))
        theirs = {str(name).removeprefix(PREFIX): str(text) for name, text in hello.items() if name.startswith(PREFIX)}
        differing = difference(self.federation.fingerprint, theirs)
        if differing:
            raise InputError("runs another problem (server, node): " + "; ".join(differing))


def _client(content: RecordDict, clients: int) -> int:
    """The client that a node says it is."""
    if "hello" not in content:
        message = content["error"].get("what") if isinstance(content.get("error"), ConfigRecord) else None
        raise InputError("did not say who it is" if message is None else f"said: {words(message)}")
    hello = content["hello"]
    if not isinstance(hello, ConfigRecord):
        raise InputError(f"answered with a {type(hello).__name__} in place of words")
    client = hello.get("client")
    if isinstance(client, bool) or not isinstance(client, int) or not 0 <= client < clients:
        raise InputError(f"must say that it is a client from 0 to {clients - 1}, said {client!r:.80}")
    return client
