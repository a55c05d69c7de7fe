"""Which node is which client: ids are random, so each new node is asked once who it is and what it runs."""

from __future__ import annotations

import time

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from profl.checks import InputError
from profl.engines.flower.federation import Federation
from profl.storage.fingerprint import difference

PREFIX = "fingerprint "
MOST = 60.0  # seconds that a node may take to say who it is, at most: a new process has to start there


class Nodes:
    """The nodes that are connected, by client."""

    def __init__(self, federation: Federation, wait: float) -> None:
        self.federation, self.wait, self.ask = federation, wait, min(wait, MOST)
        self.known: dict[int, int] = {}  # client -> node
        self.refusals: dict[int, str] = {}  # node -> why it cannot be used
        self.failed: set[int] = set()  # those of them that may answer when they are asked again

    def find(self, grid: Grid, asked: list[int], everyone: bool) -> dict[int, int]:
        """Client -> node for those who are there; waits for everyone, or for as many as a round needs."""
        needed = self.federation.clients if everyone else min(self.federation.schedule.min_reports, len(asked))
        deadline = time.monotonic() + self.wait
        self.refusals = {node: why for node, why in self.refusals.items() if node not in self.failed}
        self.failed = set()
        while True:
            self._look(grid)
            here = self.known if everyone else [client for client in asked if client in self.known]
            if len(here) >= needed:
                return self.known
            if len(self.known) + len(self.refusals) >= self.federation.clients and not self.known:
                break
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
        if not self.known:
            reasons = "; ".join(f"node {node}: {why}" for node, why in self.refusals.items())
            raise InputError(f"no client can be used after {self.wait:g} s. {reasons or 'No node is connected'}")
        return self.known

    def forget(self, client: int) -> None:
        """Ask again who is there: the client's node has failed."""
        self.known.pop(client, None)

    def _look(self, grid: Grid) -> None:
        present = set(grid.get_node_ids())
        self.known = {client: node for client, node in self.known.items() if node in present}
        self.refusals = {node: why for node, why in self.refusals.items() if node in present}
        new = present - set(self.known.values()) - set(self.refusals)
        for node, client in sorted(self._ask(grid, sorted(new)).items(), key=lambda pair: (pair[1], pair[0])):
            holder = self.known.get(client)
            if holder is not None and self._ask(grid, [holder]).get(holder) == client:
                raise InputError(
                    f"two nodes say that they are client {client} (nodes {holder} and {node}): "
                    "give every node its own partition-id"
                )
            self.known[client] = node

    def _ask(self, grid: Grid, nodes: list[int]) -> dict[int, int]:
        """node -> client, for the nodes that answer and run the same problem."""
        if not nodes:
            return {}
        messages = [Message(RecordDict(), dst_node_id=n, message_type=MessageType.QUERY, ttl=self.ask) for n in nodes]
        replies = list(grid.send_and_receive(messages, timeout=self.ask))
        by_id = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        found: dict[int, int] = {}
        for reply in replies:
            node = by_id.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            if reply.has_error():
                self.refusals[node] = reply.error.reason or f"error {reply.error.code}"
                self.failed.add(node)
            elif "hello" not in reply.content:
                why = reply.content["error"]["what"] if "error" in reply.content else "no answer"
                self.refusals[node] = str(why)
            else:
                self._hello(node, dict(reply.content["hello"]), found)
        return found

    def _hello(self, node: int, hello: dict[str, object], found: dict[int, int]) -> None:
        theirs = {name.removeprefix(PREFIX): str(text) for name, text in hello.items() if name.startswith(PREFIX)}
        differing = difference(self.federation.fingerprint, theirs)
        if differing:
            self.refusals[node] = "it runs another problem (server, node): " + "; ".join(differing)
        else:
            found[node] = int(str(hello["client"]))
