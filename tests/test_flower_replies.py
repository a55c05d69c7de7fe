"""What registered nodes send that no node sends, at a real SuperLink: each harms itself alone; and fifty nodes at once."""

from __future__ import annotations

import resource
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from profl.deploy import certificates
from profl.run.flower import replies
from profl.run.flower.message_size import ALLOWANCE
from profl.run.flower.replies import Limits, RepliesGrid
from tests.faults.network import HARMLESS, HOSTILE
from tests.flower_link import RealLink, RealNode

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
        found = RepliesGrid(link.grid, Limits(20, ALLOWANCE)).send_and_receive(messages, timeout=4.0)
        assert time.monotonic() - started < 8.0
        assert memory() - before < 100
    by_order = {message.metadata.message_id: kind for message, kind in zip(messages, [*HOSTILE, "honest"], strict=True)}
    answers = {by_order[reply.metadata.reply_to_message_id]: reply for reply in found}
    assert len(answers) == len(found)  # one each
    whole = {kind: reply for kind, reply in answers.items() if not reply.has_error()}
    assert set(HOSTILE) - set(answers) == UNANSWERED
    assert set(whole) >= {"honest", *HARMLESS}
    assert all(dict(whole[kind].content["hello"]) == {"client": 1} for kind in ("honest", *HARMLESS))
    refused = {kind: reply.error.reason for kind, reply in answers.items() if reply.has_error()}
    assert all(why.startswith("sent what cannot be read: ") and why.isprintable() for why in refused.values()), refused
    assert "states arrays of" in refused["one chunk fifty thousand times"]
    assert "more than 20 objects" in refused["many objects"]
    print(*refused.items(), "whole", *whole, sep="\n")
