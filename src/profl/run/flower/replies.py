"""A grid that takes each node's reply by itself, so that no reply can harm another one, or the run.

Flower's ``HttpGrid`` fetches the replies of all nodes in one call. It raises when one of them cannot be put together,
waits minutes for objects that a node has announced and never sends, and puts arrays together at the size that the node
states: an array of one chunk, named a hundred thousand times, fills the memory. Here each reply is bounded in objects
and bytes before it is put together, and what is wrong with it becomes an error of that node alone. Who sent it, and
what it answers, is what the SuperLink has checked, not what stands in the reply.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

from flwr.app import Error, Message
from flwr.common.serde import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_object_head_values_from_object_content, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid.http_grid import HttpGrid

from profl.checks import InputError, words

POLL = 1.0  # seconds between two looks for replies
WORKERS = 8  # replies that are fetched at the same time
UNREADABLE = 0  # the code of Flower's error messages for what has no code


class Limits(NamedTuple):
    """What a reply may be."""

    objects: int
    bytes: int


class Reply(NamedTuple):
    """A reply of which some objects are here."""

    told: Any  # the SuperLink's message: who sent it, and what it answers
    missing: set[str]
    contents: dict[str, bytes]


class RepliesGrid:
    """``grid``, an ``HttpGrid``, whose replies are fetched one by one; another kind of grid is used as it is."""

    def __init__(self, grid: Grid, limits: Limits) -> None:
        self.grid, self.limits = grid, limits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        if not isinstance(self.grid, HttpGrid):
            return list(self.grid.send_and_receive(messages, timeout=timeout))
        sent = list(messages)
        pushed = set(self.grid.push_messages(sent))
        waiting = {message.metadata.message_id: message for message in sent if message.metadata.message_id in pushed}
        end = None if timeout is None else time.monotonic() + timeout
        with ThreadPoolExecutor(WORKERS) as workers:
            return list(self._replies(waiting, end, workers.map))

    def _replies(
        self, waiting: dict[str, Message], end: float | None, each: Callable[..., Iterable[Any]]
    ) -> Iterator[Message]:
        """The replies that are whole, or refused, before the end."""
        begun: dict[str, Reply] = {}  # by the message that they answer
        while waiting:
            begun |= {order: reply for order, reply in self._announced(set(waiting) - set(begun)) if order in waiting}
            for order, final in zip(begun.copy(), each(self._fetch, list(begun.values())), strict=True):
                if final is not None:
                    del begun[order]
                    message = waiting.pop(order)
                    yield Message(final, reply_to=message) if isinstance(final, Error) else final
            if not waiting or (end is not None and time.monotonic() + POLL > end):
                return
            time.sleep(POLL)

    def _announced(self, orders: set[str]) -> Iterator[tuple[str, Reply]]:
        """(the message that it answers, the reply) for the replies that nodes have begun to send."""
        response = self._client.PullMessages(PullAppMessagesRequest(message_ids=orders)) if orders else None
        if response is None:
            return
        for told, tree in zip(response.messages_list, response.message_object_trees, strict=True):
            names = {each.object_id for each in iterate_object_tree(tree)} | {told.metadata.message_id}
            yield told.metadata.reply_to_message_id, Reply(told, names, {})

    def _fetch(self, reply: Reply) -> Message | Error | None:
        """The reply, or what is wrong with it; None while the node is still sending."""
        try:
            if len(reply.missing) + len(reply.contents) > self.limits.objects:
                raise InputError(f"sent more than {self.limits.objects} objects")
            self._pull(reply)
            if reply.missing:
                return None
            message = read_message(reply, self.limits.bytes)
        except Exception as error:  # whatever a node sends harms that node alone
            self._confirm(reply)
            why = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            return Error(UNREADABLE, words(f"sent what cannot be read: {why}"))
        self._confirm(reply)
        return message

    def _pull(self, reply: Reply) -> None:
        """Fetch the objects that have arrived at the SuperLink."""
        run = reply.told.metadata.run_id
        for name in sorted(reply.missing):
            response = self._client.PullObject(PullObjectRequest(node=self._own.node, run_id=run, object_id=name))
            if not response.object_found:
                raise InputError("did not send all of it")
            if response.object_available:
                reply.contents[name] = response.object_content
                reply.missing.remove(name)
            if sum(map(len, reply.contents.values())) > self.limits.bytes:
                raise InputError(f"sent more than {self.limits.bytes:,} bytes")

    def _confirm(self, reply: Reply) -> None:
        """Let the SuperLink forget the reply's objects."""
        told = reply.told.metadata
        request = {"node": self._own.node, "run_id": told.run_id, "message_object_id": told.message_id}
        self._client.ConfirmMessageReceived(ConfirmMessageReceivedRequest(**request))

    @property
    def _own(self) -> HttpGrid:
        return cast(HttpGrid, self.grid)

    @property
    def _client(self) -> Any:
        return self._own._runtime_client


def read_message(reply: Reply, most: int) -> Message:
    """The message that the objects of a reply make, if its arrays have at most ``most`` bytes together."""
    size = sum(stated_bytes(content, reply.contents) for content in reply.contents.values())
    if size > most:
        raise InputError(f"states arrays of {size:,} bytes")
    message: Any = inflate_object_from_contents(reply.told.metadata.message_id, reply.contents)
    if not isinstance(message, Message):
        raise InputError(f"sent no message, but a {type(message).__name__}")
    metadata: Any = metadata_from_proto(reply.told.metadata)
    content = None if message.has_error() else message.content
    error = message.error if message.has_error() else None
    return Message(metadata=metadata, content=content, error=error)  # type: ignore[call-overload]


def stated_bytes(content: bytes, contents: dict[str, bytes]) -> int:
    """The bytes of the array that an object would become; 0 for other objects."""
    kind, children, length = get_object_head_values_from_object_content(content)
    if kind != "Array":
        return 0
    chunks = json.loads(content[len(content) - length :])["arraychunk_ids"]
    return sum(len(contents[children[index]]) for index in chunks)
