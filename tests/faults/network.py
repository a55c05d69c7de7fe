"""Faults at a real SuperLink on loopback: registered nodes that send what no node sends, kills of nodes and servers.

Database, interfaces, signatures, objects and the server's grid are Flower's own (``tests.flower_link``); ``flower`` has
what happens within sound messages. A node of a schedule's faults is hostile for one answer: it does one of ``HOSTILE``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import ObjectTree

import profl
from profl.deploy import certificates
from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app, replies, retry
from profl.run.flower.replies import RepliesGrid
from tests.faults import flower
from tests.faults.common import CASE, Broken, Fault, Killed, check_end
from tests.flower_link import RealLink, RealNode

ROUNDS = 3  # an object takes a request in either direction, and a report has a dozen
CRASHES = ("server killed", "node killed")
PATIENCE, IMPATIENCE = 30.0, 8.0  # seconds that a round may take where all comes in the end, and where some never does


def thing(kind: str, children: list[str], body: bytes) -> tuple[str, bytes]:
    """(its id, an object as Flower stores it)."""
    content = f"{kind} {','.join(children)} {len(body)}".encode() + b"\x00" + body
    return hashlib.sha256(content).hexdigest(), content


def array(chunks: list[bytes], times: int = 1, shape: tuple[int, ...] = (2,)) -> dict[str, bytes]:
    """An Array that names each chunk so many times, last, and its chunks."""
    objects = dict(thing("ArrayChunk", [], chunk) for chunk in chunks)
    names = list(range(len(objects))) * times
    about = {"dtype": "float32", "shape": shape, "stype": "numpy.ndarray", "arraychunk_ids": names}
    return dict([*objects.items(), thing("Array", list(objects), json.dumps(about).encode())])


def whole(reply: Message, objects: dict[str, bytes]) -> dict[str, bytes]:
    """The objects, and an answer whose one entry theta is the last of them; its own message comes last."""
    name = list(objects)[-1]
    record = thing("ArrayRecord", [name], json.dumps({"0": name}).encode())
    content = thing("RecordDict", [record[0]], json.dumps({"entry theta": record[0]}).encode())
    body = Message(RecordDict(), reply_to=reply)  # only its metadata counts
    body.metadata.__dict__.update(reply.metadata.__dict__)
    deflated = body.deflate()
    message = thing("Message", [content[0]], deflated[deflated.index(b"\x00") + 1 :])
    return dict([*objects.items(), record, content, message])


def header(shape: str) -> bytes:
    """A NumPy file that states a shape and has no numbers."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def pushed(node: Any, reply: Message, objects: dict[str, bytes], upload: bool = True, deep: int = 0) -> None:
    """Push these objects in place of the reply's, the last of them as the message."""
    *rest, top = objects
    tree = ObjectTree(object_id=top, children=[ObjectTree(object_id=name) for name in rest])
    for _ in range(deep):
        tree = ObjectTree(object_id=hashlib.sha256(tree.object_id.encode()).hexdigest(), children=[tree])
    reply.metadata.__dict__["_message_id"] = tree.object_id
    node.push(reply, tree, objects if upload else {})


def raw(node: Any, **fields: Any) -> None:
    """Push something that Flower's own node cannot push."""
    node.client.PushMessages(PushMessagesRequest(node=node.node, **fields))


Lie = Callable[[Any, Message, ObjectTree, dict[str, bytes]], None]
HOSTILE: dict[str, Lie] = {
    "no message": lambda node, reply, tree, objects: pushed(node, reply, array([b"x"])),
    "a record in its place": lambda node, reply, tree, objects: pushed(
        node, reply, {one.object_id: one.deflate() for one in [ArrayRecord()]}
    ),
    "a message of garbage": lambda node, reply, tree, objects: pushed(
        node, reply, dict([thing("Message", [], b"\xff" * 90)])
    ),
    "a message of nothing": lambda node, reply, tree, objects: pushed(node, reply, dict([thing("Message", [], b"")])),
    "a child that is nowhere": lambda node, reply, tree, objects: pushed(
        node, reply, dict([thing("Message", ["0" * 64], b"")])
    ),
    "announced and never sent": lambda node, reply, tree, objects: node.push(reply, tree, {}),
    "sent in part": lambda node, reply, tree, objects: node.push(reply, tree, dict(list(objects.items())[:2])),
    "many objects": lambda node, reply, tree, objects: pushed(
        node, reply, dict(thing("ArrayChunk", [], str(i).encode()) for i in range(500)), upload=False
    ),
    "a deep tree": lambda node, reply, tree, objects: pushed(node, reply, array([b"x"]), deep=60),
    "one chunk fifty thousand times": lambda node, reply, tree, objects: pushed(
        node, reply, whole(reply, array([b"x" * 10**5], times=5 * 10**4))
    ),
    "chunks that it does not have": lambda node, reply, tree, objects: pushed(
        node, reply, whole(reply, dict([thing("Array", [], b'{"arraychunk_ids": [7]}')]))
    ),
    "an array of no JSON": lambda node, reply, tree, objects: pushed(
        node, reply, whole(reply, dict([thing("Array", [], b"[" * 10**5)]))
    ),
    "a petabyte in a header": lambda node, reply, tree, objects: pushed(
        node, reply, whole(reply, array([header("(10**15,)".replace("10**15", "1" + "0" * 15))]))
    ),
    "a zip in place of an array": lambda node, reply, tree, objects: pushed(
        node, reply, whole(reply, array([b"PK\x05\x06" + b"\x00" * 18]))
    ),
    "no messages": lambda node, reply, tree, objects: raw(node),
    "a message without objects": lambda node, reply, tree, objects: raw(node, messages_list=[node.told(reply)]),
    "objects without a message": lambda node, reply, tree, objects: raw(node, message_object_trees=[tree]),
    "twice": lambda node, reply, tree, objects: [node.push(reply, tree, objects) for _ in range(2)],  # type: ignore[func-returns-value, return-value]
    "silence": lambda node, reply, tree, objects: None,
}
UNSUITABLE = ("a petabyte in a header", "a zip in place of an array")  # sound messages, whose arrays are none
HARMLESS = ("twice",)


GONE_SECONDS = 0.3  # seconds that a killed node is away: the server looks more often


def schedule(seed: int) -> list[Fault]:
    """The faults of a seed; every third has crashes alone."""
    rng = np.random.default_rng([seed, 33])
    kinds = CRASHES if seed % 3 == 0 else (*CRASHES, *HOSTILE)
    count = int(rng.integers(1, 4))
    drawn = [
        Fault(kinds[rng.integers(len(kinds))], int(rng.integers(ROUNDS)), int(rng.integers(CASE.count)))
        for _ in range(count)
    ]
    named = Fault(list(HOSTILE)[seed % len(HOSTILE)], int(rng.integers(ROUNDS)), int(rng.integers(CASE.count)))
    return drawn if seed % 3 == 0 else [named, *drawn]  # every kind has its turn


class FaultyNode(RealNode):
    """A node to which a schedule's faults happen, in the round that its order names."""

    left: list[Fault]
    round = -1

    def answer(self, message: Message) -> Message:
        self.round = int(message.content["order"]["round"]) - 1 if "order" in message.content else -1
        if self.take("node killed") is not None:
            self.die(GONE_SECONDS)
        return super().answer(message)

    def take(self, *kinds: str) -> str | None:
        for fault in self.left:
            if fault.kind in kinds and fault.round == self.round and fault.client == self.number:
                self.left.remove(fault)
                return fault.kind
        return None

    def push(self, reply: Message, tree: ObjectTree, objects: dict[str, bytes]) -> None:
        kind = self.take(*HOSTILE)
        if kind is None:
            super().push(reply, tree, objects)
        else:
            HOSTILE[kind](self, reply, tree, objects)


class KilledServer(RepliesGrid):
    """A server that is killed when it has a round's replies."""

    left: list[Fault]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        sent = list(messages)
        found = super().send_and_receive(sent, timeout=timeout)
        rounds = {int(one.content["order"]["round"]) - 1 for one in sent if "order" in one.content}
        for fault in self.left:
            if fault.kind == "server killed" and fault.round in rounds:
                self.left.remove(fault)
                raise Killed
        return found


def run(seed: int, folder: Path) -> str:
    """One schedule, checked; in a line what came of it."""
    faults = schedule(seed)
    left, expected = list(faults), undisturbed()  # which compiles what the nodes need
    certificates.make(folder / "keys", CASE.count)
    node, server = (type("Own", (kind,), {"left": left}) for kind in (FaultyNode, KilledServer))
    with (
        RealLink(folder / "keys", folder / "link") as link,
        mock.patch.object(replies, "POLL", 0.05),
        mock.patch.object(retry, "POLL", 0.05),
        mock.patch("profl.run.flower.strategy.RepliesGrid", server),
    ):
        app = make_client_app(federation(), folder=folder / "nodes")
        for number in range(CASE.count):
            link.add(number, app, node)
        patient = all(fault.kind in (*CRASHES, *HARMLESS) for fault in faults)
        options = {"timeout": PATIENCE if patient else IMPATIENCE, "wait": 5.0, "checkpoint": folder / "server"}
        ended, starts = until_the_end(link, len(faults), {**options, "identities": folder / "keys" / "clients.json"})
    if isinstance(ended, str):
        return f"stopped after {starts} starts: {ended}"
    check_end(ended, ROUNDS)
    to_blame = {fault.client for fault in faults if not patient}
    if not {client for _, client, _ in ended.incidents} <= to_blame:
        raise Broken(f"others: {ended.incidents}")
    if not ended.incidents:
        if ended.theta.tobytes() != expected.tobytes():
            raise Broken("bits: crashes alone changed the trajectory")
        return f"ended with equal bits after {starts} starts"
    return f"ended after {starts} starts, {len(ended.incidents)} incidents"


@cache
def federation() -> Any:
    return flower.federation().with_rounds(ROUNDS)


@cache
def undisturbed() -> Any:
    """theta of the run without faults."""
    return ProFLStrategy(federation(), wait=1.0).run(InProcessGrid(make_client_app(federation()), CASE.count)).theta


def until_the_end(link: RealLink, most: int, options: dict[str, Any]) -> tuple[Any, int]:
    for starts in range(1, most + 2):
        try:
            return ProFLStrategy(federation(), **options).run(link.grid), starts
        except Killed:
            continue
        except profl.TooFewReports as error:
            return f"TooFewReports: {str(error)[:80]}", starts
    raise Broken("end: it was started more often than it was killed")
