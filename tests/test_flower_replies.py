"""What registered nodes send that no node sends, at a real SuperLink: each harms itself alone. Fifty nodes at once."""

from __future__ import annotations

import resource
import time

import numpy as np
import pytest

import profl

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from profl.deploy import certificates
from profl.run.flower import replies, wire
from profl.run.flower.message_size import ALLOWANCE, message_bytes, message_objects
from profl.run.flower.replies import Limits, RepliesGrid
from profl.run.flower.rounds import absent_report
from tests.faults.network import HARMLESS, HOSTILE, UNSUITABLE
from tests.flower_link import RealLink, RealNode
from tests.flower_run import federation

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
MIB = 2**20
UNANSWERED = {"announced and never sent", "sent in part", "silence", "no messages"}
UNANSWERED |= {"a message without objects", "objects without a message"}


class Liar(RealNode):
    """A node that answers with one of ``HOSTILE``."""

    kind: str

    def push(self, reply, tree, objects):
        if not self.over.is_set():
            self.over.set()  # once
            HOSTILE[self.kind](self, reply, tree, objects)
        else:
            super().push(reply, tree, objects)


def echo(message, context):
    return Message(RecordDict({"hello": ConfigRecord({"client": 1})}), reply_to=message)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder, 50)
    return folder


def asked(link, nodes):
    return [
        Message(RecordDict({"hello": ConfigRecord({"nonce": "x"})}), node.node.node_id, MessageType.QUERY, ttl=60.0)
        for node in nodes
    ]


def memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def test_what_a_node_sends_harms_that_node_alone(keys, tmp_path, monkeypatch):
    """With Flower's own grid most of these end the run, and what is announced and never sent stops it for minutes."""
    monkeypatch.setattr(replies, "POLL", 0.1)
    with RealLink(keys, tmp_path / "link") as link:
        nodes = [link.add(number, echo, type("Own", (Liar,), {"kind": kind})) for number, kind in enumerate(HOSTILE)]
        nodes.append(link.add(len(HOSTILE), echo))
        messages, before, started = asked(link, nodes), memory(), time.monotonic()
        found = RepliesGrid(link.grid, Limits(20, ALLOWANCE)).send_and_receive(messages, timeout=10.0)
        assert time.monotonic() - started < 60.0  # and not the minutes that are announced
        assert memory() - before < 100
    by_order = {message.metadata.message_id: kind for message, kind in zip(messages, [*HOSTILE, "honest"], strict=True)}
    answers = {by_order[reply.metadata.reply_to_message_id]: reply for reply in found}
    assert len(answers) == len(found)  # one each
    whole = {kind: reply for kind, reply in answers.items() if not reply.has_error()}
    assert set(HOSTILE) - set(answers) == UNANSWERED
    assert set(whole) == {"honest", *HARMLESS, *UNSUITABLE}
    assert all(dict(whole[kind].content["hello"]) == {"client": 1} for kind in ("honest", *HARMLESS))
    refused = {kind: reply.error.reason for kind, reply in answers.items() if reply.has_error()}
    assert all(why.startswith("sent what cannot be read: ") and why.isprintable() for why in refused.values()), refused
    assert "states arrays of" in refused["one chunk fifty thousand times"]
    assert "more than 20 objects" in refused["many objects"]
    for kind in UNSUITABLE:
        with pytest.raises(profl.InputError, match="array 0 of theta"):
            wire.from_arrays(whole[kind].content["entry theta"], np.zeros(2, np.float32), "theta")
    assert memory() - before < 100


def test_what_a_message_may_be_holds_honest_messages():
    """Of every method, with shared Jacobians too, the report has fewer objects and bytes than are allowed."""
    for method in (profl.pfl(0.1), profl.profl(0.1, share=2), profl.prm()):
        own = federation(method, participation=1.0)
        record = wire.write_report(absent_report(own), wire.Order((), (), 1, 1, 0, 1, 0, 0, "", ""), False, 3)
        asked = Message(RecordDict(), 1, MessageType.TRAIN)
        asked.metadata.__dict__["_message_id"] = "0" * 64
        objects = get_all_nested_objects(Message(record, reply_to=asked))
        assert len(objects) <= message_objects(own)
        assert sum(len(one.deflate()) for one in objects.values()) <= message_bytes(own) - ALLOWANCE // 2


@pytest.mark.parametrize(
    "count", [8, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.faults])], ids=["eight", "fifty"]
)
def test_many_nodes_at_once(count, keys, tmp_path, monkeypatch):
    """All answer, and every answer is that of the node that was asked."""
    monkeypatch.setattr(replies, "POLL", 0.1)
    monkeypatch.setattr(RealNode, "pause", 0.02 * count)  # Flower's nodes look every three seconds
    with RealLink(keys, tmp_path / "link") as link:
        nodes = [link.add(number, echo) for number in range(count)]
        messages, started = asked(link, nodes), time.monotonic()
        found = RepliesGrid(link.grid, Limits(20, ALLOWANCE)).send_and_receive(messages, timeout=120.0)
        print(f"{count} nodes: {time.monotonic() - started:.1f} s")
    by_order = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
    assert {one.metadata.reply_to_message_id: one.metadata.src_node_id for one in found} == by_order
    assert not any(one.has_error() for one in found)
