"""A Flower grid inside one process: the same apps and messages, without a network. For tests and for trying out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class InProcessGrid(Grid):
    """Nodes 100, 101, ... that all run ``app``; node 100 + i has partition-id i and a context of its own.

    Messages are copied on the way, so that nobody shares memory with anybody. ``fails`` are nodes that are gone.
    """

    def __init__(self, app: ClientApp, nodes: int, run_config: dict[str, Any] | None = None) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self.app = app
        self.contexts = {
            100 + i: Context(1, 100 + i, {"partition-id": i, "num-partitions": nodes}, RecordDict(), run_config or {})
            for i in range(nodes)
        }
        self.numbers = itertools.count(1)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [reply for message in messages for reply in self.deliver(message)]

    def deliver(self, message: Message) -> list[Message]:
        """What comes back for one message; tests make it fail here."""
        message.metadata.__dict__["_message_id"] = str(next(self.numbers))
        node = message.metadata.dst_node_id
        try:
            reply = self.app(copy.deepcopy(message), self.contexts[node])
        except Exception as error:
            reply = Message(Error(0, f"{type(error).__name__}: {error}"), reply_to=message)
        return [copy.deepcopy(reply)]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError("an in-process grid has one run")

    @property
    def run(self) -> Any:
        raise NotImplementedError("an in-process grid has no run of its own")

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        return Message(*arguments, **named)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("use send_and_receive")
