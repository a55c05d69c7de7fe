"""Nodes that lie about who they are and what they found: each is refused alone and by name, and the others go on."""

from __future__ import annotations

import copy
import json
import logging
import random

import jax
import numpy as np
import pytest

import profl
from profl import checks

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from profl.deploy import certificates
from profl.run.flower import Federation, InProcessGrid, ProFLStrategy, make_client_app, wire
from profl.run.flower.identity import Identities, proof
from profl.run.flower.nodes import NOBODY, Nodes
from profl.run.flower.rounds import absent_report, begin_round, open_federation
from profl.run.live.simulated import SimulatedClient
from tests.flower_run import federation


@pytest.fixture(scope="module")
def own():
    return federation(participation=1.0, rounds=2)


@pytest.fixture(scope="module")
def sound(own):
    return ProFLStrategy(own, wait=1.0).run(InProcessGrid(make_client_app(own), 4))


class Liars(InProcessGrid):
    """Four honest nodes, and those of ``lies`` (node -> what it makes of its honest reply)."""

    def __init__(self, app, lies, kind="hello"):
        super().__init__(app, 4)
        self.lies, self.kind = lies, kind
        for node in lies:
            if node not in self.contexts:
                self.contexts[node] = copy.deepcopy(self.contexts[103])

    def deliver(self, message):
        replies = super().deliver(message)
        lie = self.lies.get(message.metadata.dst_node_id)
        return replies if lie is None or self.kind not in message.content else lie(message, replies[0])


def said(**entries):
    """A hello with other entries; None leaves one out."""

    def lie(message, reply):
        hello = dict(reply.content["hello"]) | entries
        reply.content["hello"] = ConfigRecord({name: value for name, value in hello.items() if value is not None})
        return [reply]

    return lie


def content(**records):
    return lambda message, reply: [Message(RecordDict(records), reply_to=message)]


NONSENSE = [
    *(
        said(client=value)
        for value in (None, -1, 4, 10**9, 2**63 - 1, 2.0, float("nan"), float("inf"), "0", "x" * 9999)
    ),
    *(said(client=value) for value in (True, b"\x00", [0], [0, 1], "\x1b[2J", "")),
    *(said(**{"fingerprint loss": value}) for value in (None, "another", 7, b"\xff", [1.0], "y" * 99999)),
    said(client=10**5000),  # which Python does not write out
    said(**{"fingerprint more": "\n\r\x07"}),
    content(),
    content(hello=ConfigRecord()),
    content(hello=MetricRecord({"client": 3})),
    content(hello=ArrayRecord({"client": Array(np.zeros(2))})),
    content(error=ConfigRecord()),
    content(error=ConfigRecord({"what": "no\x1b[31m\n" * 2000})),
    content(error=MetricRecord({"what": 3})),
    content(report=MetricRecord({"client": 3})),
    lambda message, reply: [Message(Error(2, "gone\n\x1b" + "z" * 5000), reply_to=message)],
    lambda message, reply: [Message(Error(0, ""), reply_to=message)],
]


def test_a_hello_of_nonsense_refuses_that_node_alone(own):
    lies = {200 + i: lie for i, lie in enumerate(NONSENSE)}
    nodes = Nodes(own, 1.0)
    assert nodes.find(Liars(make_client_app(own), lies), [0, 1, 2, 3], True) == {0: 100, 1: 101, 2: 102, 3: 103}
    assert set(nodes.refusals) == set(lies)
    news = nodes.take_news()
    assert len(news) == len(lies)
    assert {client for client, _ in news} <= {NOBODY, 3}
    assert all(len(why) <= checks.MOST_TEXT and why.isprintable() for why in nodes.refusals.values())
    assert not nodes.take_news()  # told once


def test_random_hellos(own):
    """Entries of an honest answer, swapped for anything that a record can hold."""
    draw = random.Random(5)
    values = [
        0,
        -1,
        3,
        2**63 - 1,
        1e308,
        float("nan"),
        "",
        "client",
        b"",
        b"\xff" * 99,
        True,
        [],
        [1, 2],
        ["a"],
        [b"b"],
    ]

    def mutated(message, reply):
        hello = dict(reply.content["hello"])
        for name in draw.sample(sorted(hello), 3):
            hello[name] = draw.choice(values)
        hello["client"] = draw.choice([*values, "3"])
        reply.content["hello"] = ConfigRecord(hello)
        return [reply]

    lies = {200 + i: mutated for i in range(100)}
    nodes = Nodes(own, 1.0)
    assert nodes.find(Liars(make_client_app(own), lies), [0, 1, 2, 3], True) == {0: 100, 1: 101, 2: 102, 3: 103}
    assert set(nodes.refusals) == set(lies)


def test_the_run_goes_on_without_the_liar(own, sound):
    run = ProFLStrategy(own, wait=1.0).run(Liars(make_client_app(own), {200: said(client=2.5), 201: said(client=2)}))
    np.testing.assert_array_equal(run.theta, sound.theta)
    told = {client: what for _, client, what in run.incidents}
    assert told[NOBODY] == "node 200 was refused: it must say that it is a client from 0 to 3, said 2.5"
    assert told[2] == "node 201 was refused: it says that it is client 2, which node 102 is"
    assert len(run.incidents) == 2


def test_a_rival_gets_the_place_once_its_holder_is_gone(own):
    grid, nodes = Liars(make_client_app(own), {201: said(client=2)}), Nodes(own, 1.0)
    assert nodes.find(grid, [0, 1, 2, 3], True)[2] == 102
    del grid.contexts[102]
    assert nodes.find(grid, [2], False)[2] == 201


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder, 5)
    return folder


class Keyed(InProcessGrid):
    """Node 100 + i has key ``keys[i]`` and says that it is client ``numbers[i]``."""

    def __init__(self, app, keys, numbers):
        super().__init__(app, len(keys))
        for context, key, number in zip(self.contexts.values(), keys, numbers, strict=True):
            context.node_config |= {"key": str(key), "partition-id": number}
            if key is None:
                del context.node_config["key"]


def test_nodes_prove_who_they_are(own, sound, keys):
    """An impostor with another registered key, and one without a key, in the place of clients that are there."""
    has = [keys / f"client-{i}" for i in (4, 0, 1, 2, 3)]
    grid = Keyed(make_client_app(own), [*has, None], [1, 0, 1, 2, 3, 2])
    run = ProFLStrategy(own, wait=1.0, identities=keys / "clients.json").run(grid)
    np.testing.assert_array_equal(run.theta, sound.theta)
    assert [(client, what) for _, client, what in run.incidents] == [
        (1, "node 100 was refused: it says that it is client 1, and does not have that client's key"),
        (2, "node 105 was refused: it says that it is client 2, and signed nothing: its settings must name its key"),
    ]


def test_an_impostor_does_not_get_an_absent_clients_place(own, keys, monkeypatch):
    """Client 3 is away; node 103 has a key of its own and says that it is client 3. The environment binds, too."""
    monkeypatch.setenv("PROFL_IDENTITIES", str(keys / "clients.json"))
    grid = Keyed(make_client_app(own), [keys / f"client-{i}" for i in (0, 1, 2, 4)], [0, 1, 2, 3])
    run = ProFLStrategy(own, wait=1.0).run(grid)
    assert {client for _, client, _ in run.incidents} == {3}
    assert "node 103 was refused: it says that it is client 3, and does not have" in run.incidents[0][2]
    assert run.live.absent[0].tolist() == [0, 1, 1]


def test_a_signature_is_good_for_one_question_of_one_node(keys):
    bound, nonce = Identities(keys / "clients.json"), "ab" * 16
    signed = proof(keys / "client-0", nonce, 7, 0)
    bound.check(0, nonce, 7, signed)
    for client, asked, node in ((1, nonce, 7), (0, "cd" * 16, 7), (0, nonce, 8), (9, nonce, 7)):
        with pytest.raises(profl.InputError):
            bound.check(client, asked, node, signed)
    for nothing in (None, b"", "signed", b"\x00" * 100):
        with pytest.raises(profl.InputError):
            bound.check(0, nonce, 7, nothing)
    for asked in ("2026-01-01T00:00:00", "", None, "AB" * 16, "a" * 4000):
        with pytest.raises(profl.InputError, match="no nonce"):
            proof(keys / "client-0", asked, 7, 0)


def test_a_binding_that_cannot_be_used(tmp_path, keys):
    text = json.loads((keys / "clients.json").read_text())
    for content in ("", "[]", '{"x": "y"}', '{"0": 3}', json.dumps(text | {"1": text["0"]})):
        (tmp_path / "clients.json").write_text(content)
        with pytest.raises(profl.InputError, match=r"clients\.json"):
            Identities(tmp_path / "clients.json")


# -- reports ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answer(own):
    """(the order, a good answer to it, the shapes of a report)."""
    history = open_federation(own)
    order = begin_round(own.plan, history).order(own, history, 1, "token")
    grid = InProcessGrid(make_client_app(own), 4)
    message = Message(wire.write_order(order), dst_node_id=101, message_type="train")
    return order, grid.deliver(message)[0].content, absent_report(own)


def stated(**numbers):
    def lie(record):
        kept = {name: value for name, value in dict(record["report"]).items() if name not in numbers}
        record["report"] = MetricRecord(kept | {name: value for name, value in numbers.items() if value is not None})

    return lie


def swapped(name, value):
    def lie(record):
        if value is None:
            del record[name]
        else:
            record[name] = value

    return lie


def leaf(array):
    return lambda record: record["entry theta"].__setitem__("0", array)


HUGE = Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"\x93NUMPY" + b"0" * 10**6)
REPORTS = {
    "many samples": stated(samples=10**9),
    "most samples": stated(samples=2**63 - 1),
    "more samples than can be written out": stated(samples=10**5000),
    "negative samples": stated(samples=-1),
    "samples of no whole number": stated(samples=30.5),
    "no samples": stated(samples=None),
    "a list of samples": stated(samples=[1, 2]),
    "another client": stated(client=2),
    "no client": stated(client=None),
    "another number": stated(number=7),
    "a list for a loss": stated(**{"info loss": [1.0, 2.0]}),
    "no report": swapped("report", None),
    "a report of words": swapped("report", ConfigRecord({"client": 1, "number": 1, "samples": 60})),
    "a report of arrays": swapped("report", ArrayRecord({"client": Array(np.zeros(1))})),
    "no theta": swapped("entry theta", None),
    "theta in words": swapped("entry theta", ConfigRecord({"0": "x"})),
    "two thetas": swapped("entry theta", ArrayRecord({"0": Array(np.zeros(2, "f4")), "1": Array(np.zeros(2, "f4"))})),
    "another shape": leaf(Array(np.zeros((2, 1), np.float32))),
    "another type": leaf(Array(np.zeros(2, np.int32))),
    "no array": leaf(Array(dtype="float32", shape=(2,), stype="numpy.ndarray", data=b"garbage")),
    "another kind of array": leaf(Array(dtype="float32", shape=(2,), stype="pickle", data=b"garbage")),
    "far too many bytes": leaf(HUGE),
    "an error": swapped("error", ConfigRecord({"what": "\x1b[2J\n" * 999})),
    "an error of no words": swapped("error", ConfigRecord({"what": [1, 2]})),
    "an error of arrays": swapped("error", ArrayRecord()),
}


@pytest.mark.parametrize("lie", REPORTS.values(), ids=REPORTS)
def test_a_report_of_nonsense_is_refused_in_words(lie, own, answer):
    order, good, like = answer
    wire.read_report(good, order, like, own.most_samples)  # the honest one is not
    record = copy.deepcopy(good)
    lie(record)
    with pytest.raises(profl.InputError) as refused:
        wire.read_report(record, order, like, own.most_samples)
    assert 0 < len(str(refused.value)) <= checks.MOST_TEXT
    assert str(refused.value).isprintable()


def test_kinds_come_from_the_method_and_never_from_the_network(own, answer):
    order, good, like = answer
    assert sorted(good) == sorted(["report", *(f"entry {name}" for name in like.reports)])  # no kind travels
    record = copy.deepcopy(good)
    record["kinds"] = ConfigRecord(dict.fromkeys(like.reports, "count"))
    record["entry more"] = record["entry theta"]
    work, _ = wire.read_report(record, order, like, own.most_samples)
    assert work.reports["theta"].kind == "model"
    assert jax.tree.structure(work.reports) == jax.tree.structure(own.plan.report)


def test_random_reports_raise_nothing_else(own, answer):
    order, good, like = answer
    draw, odd = random.Random(7), [0, -5, 2**63 - 1, 1e308, float("nan"), [], [1], [float("inf")]]
    records = [MetricRecord({"a": 1}), ConfigRecord({"0": "x"}), ArrayRecord(), ArrayRecord({"0": HUGE})]
    refused = 0
    for _ in range(300):
        record = copy.deepcopy(good)
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.5:
                record[draw.choice(sorted(record))] = copy.deepcopy(draw.choice(records))
            elif isinstance(record.get("report"), MetricRecord):
                record["report"][draw.choice(sorted(record["report"]))] = draw.choice(odd)
        try:
            work, _ = wire.read_report(record, order, like, own.most_samples)
        except profl.InputError:
            refused += 1
        else:
            assert 0 <= int(work.samples) <= own.most_samples
    assert refused > 200


def test_more_samples_than_asked_are_believed_within_reason(own, answer):
    order, good, like = answer
    record = copy.deepcopy(good)
    record["report"]["samples"] = 30 * 2 * 100
    assert int(wire.read_report(record, order, like, own.most_samples)[0].samples) == own.most_samples == 6000


def test_a_reply_from_another_node_than_was_asked(own):
    def other(message, reply):
        reply.metadata.__dict__["_src_node_id"] = 102
        return [reply]

    run = ProFLStrategy(own, wait=1.0).run(Liars(make_client_app(own), {101: other}, kind="order"))
    assert [(r, c) for r, c, _ in run.incidents] == [(1, 1), (1, 1), (2, 1), (2, 1)]
    assert run.incidents[0][2] == "node 102 answered in its place: refused"


def test_an_order_cannot_be_guessed(own):
    """Everybody else knows all of it, but for the nonce."""
    history = open_federation(own)
    turn = begin_round(own.plan, history)
    first, second = (turn.order(own, history, 1, "token") for _ in range(2))
    assert len(first.nonce) == 32
    assert first.nonce != second.nonce


# -- as in the loop --------------------------------------------------------------------------------------------------


def test_every_round_has_a_line_in_the_log(own, caplog):
    with caplog.at_level(logging.INFO, logger="flwr"):
        ProFLStrategy(own, wait=1.0).run(Liars(make_client_app(own), {101: lambda message, reply: []}, kind="order"))
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("round ")]
    assert len(lines) == 2
    assert lines[1].startswith("round 2 of 2: 3 reports, estimated risk -")
    assert lines[1].endswith("absent: 1")


def test_the_guard_stops_a_run_that_explodes(own):
    """From the second round on everybody states a loss of a million; after the third of those rounds it ends."""

    def exploded(message, reply):
        if message.content["order"]["round"] > 1:
            reply.content["report"]["info loss"] = 1e6
        return [reply]

    app = make_client_app(own)
    longer = own.with_rounds(9)
    with pytest.raises(profl.DivergedError, match=r"round 4: the estimated risk has been 10 times its first scale"):
        ProFLStrategy(longer, wait=1.0).run(Liars(app, dict.fromkeys(range(100, 104), exploded), kind="order"))
    lone = ProFLStrategy(own, wait=1.0, guard=1e9)
    lone.run(Liars(app, dict.fromkeys(range(100, 104), exploded), kind="order"))


def test_deployed_regret_is_that_of_what_clients_deployed():
    """Clients state the exact risk of what they deployed, the server takes the optimum's off."""
    case = profl.cases.pricing(clients=2, goods=2)
    over = Federation(case, profl.pfl(), 2, rounds=2, local_steps=2, samples=20, seed=3)
    deployed = []

    class Seen(SimulatedClient):
        def deploy(self, theta, samples, step, world=()):
            deployed.append((step // 2, self.client, theta))
            return super().deploy(theta, samples, step, world)

    app = make_client_app(over, [Seen(over.plan, client) for client in range(2)])
    run = ProFLStrategy(over, wait=1.0).run(InProcessGrid(app, 2))
    floor, total, expected = case.client_risks(case.optimum), 0.0, []
    for number in range(2):
        of_round = [case.client_risks(theta)[i] - floor[i] for r, i, theta in deployed if r == number]
        total += float(np.sum(of_round)) / 2  # two clients of equal weight
        expected.append(total / (2 * (number + 1)))  # steps so far
    np.testing.assert_allclose(run.deployed_regret[0, 1:], expected, rtol=1e-4)
