"""Flower in one process, with every fault that a network has. (``test_loop`` holds the trajectory to simulate's.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import profl

flwr = pytest.importorskip("flwr")

from flwr.app import Array, Error, Message, RecordDict  # noqa: E402

from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app, make_server_app  # noqa: E402
from tests.flower_run import SETTINGS, federation  # noqa: E402
from tests.killed import CASE, METHODS  # noqa: E402

ROOT = Path(__file__).parent.parent


def go(own, grid=InProcessGrid, app=None, **options):
    """(run, strategy, grid) of a federation in one process."""
    strategy = ProFLStrategy(own, **{"wait": 1.0, **options})
    made = grid(app or make_client_app(own), 4)
    return strategy.run(made), strategy, made


@pytest.fixture(scope="module")
def sound():
    """The run without faults, everybody asked in every round."""
    return go(federation(participation=1.0))[0]


class Faulty(InProcessGrid):
    """In round 3, something happens to what client 1 sends."""

    client, round = 1, 3

    def deliver(self, message):
        replies = super().deliver(message)
        order = message.content.get("order")
        if order is None or order["client"] != self.client or order["round"] != self.round:
            return replies
        return self.fault(message, replies[0])

    def fault(self, message, reply):
        raise NotImplementedError


class Killed(Faulty):
    """The node is gone in the middle of the round; the SuperLink says so in its place."""

    def fault(self, message, reply):
        lost = Message(Error(5, "node unavailable"), reply_to=message)
        lost.metadata.__dict__["_src_node_id"] = 1
        return [lost]


class Back(Killed):
    """... and it is back within the round, as ``profl flower node`` is after a kill: with what it has on disk."""

    away, looked = False, 0

    def fault(self, message, reply):
        if self.away:
            return [reply]
        self.away = True
        self.contexts[101].state = RecordDict()
        return super().fault(message, reply)

    def get_node_ids(self):
        looked, self.looked = self.looked, self.looked + 1
        return [node for node in self.contexts if node != 101 or not self.away or looked > 3]


class Missing(Faulty):
    def fault(self, message, reply):
        return []


class NotANumber(Faulty):
    def fault(self, message, reply):
        reply.content["entry theta"]["0"] = Array(np.full(2, np.nan, np.float32))
        return [reply]


class WrongShape(Faulty):
    def fault(self, message, reply):
        reply.content["entry theta"]["0"] = Array(np.zeros(3, np.float32))
        return [reply]


class WrongType(Faulty):
    def fault(self, message, reply):
        reply.content["entry theta"]["0"] = Array(np.zeros(2, np.float64))
        return [reply]


class Nothing(Faulty):
    def fault(self, message, reply):
        return [Message(RecordDict(), reply_to=message)]


class OtherRound(Faulty):
    """A late reply: what the client found in an earlier round."""

    def fault(self, message, reply):
        reply.content["report"]["number"] = 2
        return [reply]


FAULTS = {
    Killed: "failed: node unavailable",
    Missing: "did not answer within",
    NotANumber: "refused",
    WrongShape: "array 0 of theta must be float32 of shape (2,), got float32 of shape (3,)",
    WrongType: "got float64",
    Nothing: "sent no report",
    OtherRound: "answered for number 2, was asked for number 3",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_report_that_cannot_be_used_is_left_out_and_the_client_goes_on_from_before(fault, sound):
    """Equal to the loop with the same client missing in the same round."""
    run, _, _ = go(federation(participation=1.0), fault)
    assert [(r, c) for r, c, _ in run.incidents] == [(3, 1)]
    assert FAULTS[fault] in run.incidents[0][2]
    np.testing.assert_array_equal(run.theta[0, :3], sound.theta[0, :3])
    np.testing.assert_allclose(run.theta, without_client_1_in_round_3(), atol=1e-6)


def without_client_1_in_round_3():
    if not hasattr(without_client_1_in_round_3, "theta"):
        method = METHODS["loop"]
        clients = profl.worlds.simulated_clients(CASE, method, samples=30, seed=3)

        class Absent:
            def deploy(self, theta, samples, step):
                return None if step == 4 else clients[1].deploy(theta, samples, step)

        settings = {**SETTINGS, "participation": 1.0}
        run = profl.train(CASE, method, [clients[0], Absent(), *clients[2:]], progress=False, **settings)
        without_client_1_in_round_3.theta = run.theta
    return without_client_1_in_round_3.theta


class Twice(Faulty):
    def fault(self, message, reply):
        return [reply, reply]


def test_the_same_reply_twice_counts_once(sound):
    run, _, _ = go(federation(participation=1.0), Twice)
    assert not run.incidents
    np.testing.assert_array_equal(run.theta, sound.theta)


class Restarted(Faulty):
    """The node starts again, under another id, without what Flower kept for it."""

    def fault(self, message, reply):
        context = self.contexts.pop(message.metadata.dst_node_id)
        context.node_id, context.state = 777, RecordDict()
        self.contexts[777] = context
        return [reply]


def test_a_node_that_restarts_finds_its_state_on_disk(sound, tmp_path):
    own = federation(participation=1.0)
    run, _, _ = go(own, Restarted, make_client_app(own, folder=tmp_path))
    assert not run.incidents
    np.testing.assert_array_equal(run.theta, sound.theta)


def test_a_node_that_is_killed_and_back_within_the_round_changes_nothing(sound, tmp_path):
    """The order that died with it goes out again, to the state that it has on disk: equal bits, no incident."""
    own = federation(participation=1.0)
    run, _, grid = go(own, Back, make_client_app(own, folder=tmp_path), wait=5.0)
    assert grid.away
    assert not run.incidents
    np.testing.assert_array_equal(run.theta, sound.theta)
    np.testing.assert_array_equal(run.deployments, sound.deployments)
    assert (tmp_path / "client-1").stat().st_mode & 0o077 == 0


class Counting:
    """A client that remembers what it deployed; asked again, it knows what came in."""

    def __init__(self, simulated, dies_at=None, collects=True):
        self.simulated, self.dies_at, self.steps, self.collected = simulated, dies_at, [], []
        if collects:
            self.collect = self._collect

    def deploy(self, theta, samples, step):
        self.steps.append((step, theta.tolist()))
        if step == self.dies_at:
            self.dies_at = None
            raise ConnectionError("the data are not there yet")
        return self.simulated.deploy(theta, samples, step)

    def _collect(self, id, theta, samples):
        step = int(id.split("-")[-1])
        self.collected.append(step)
        return self.simulated.deploy(theta, samples, step)


def count_deployments(tmp_path, grid, **options):
    own = federation(participation=1.0)
    simulated = profl.worlds.simulated_clients(CASE, own.method, samples=30, seed=3)
    client = Counting(simulated[1], **options)
    clients = [simulated[0], client, *simulated[2:]]
    run, _, _ = go(own, grid, make_client_app(own, clients, folder=tmp_path), wait=5.0)
    return run, client


def test_an_order_that_is_sent_again_deploys_nothing_twice(sound, tmp_path):
    run, client = count_deployments(tmp_path, Back)
    assert [step for step, _ in client.steps] == list(range(12))
    assert not client.collected
    np.testing.assert_array_equal(run.theta, sound.theta)


class AskedAgain(InProcessGrid):
    """The node's answer says that a deployment failed; the server, set back, sends the order once more."""

    asked = False

    def deliver(self, message):
        replies = super().deliver(message)
        order = message.content.get("order")
        if order is None or order["client"] != 1 or order["round"] != 3 or self.asked:
            return replies
        self.asked = True
        return super().deliver(message)


@pytest.mark.parametrize("collects", [True, False])
def test_a_deployment_that_is_open_is_collected_or_made_again_with_the_same_model(sound, tmp_path, collects):
    run, client = count_deployments(tmp_path, AskedAgain, dies_at=5, collects=collects)
    steps = [step for step, _ in client.steps]
    assert client.collected == ([5] if collects else [])
    assert steps == (list(range(12)) if collects else [*range(6), *range(5, 12)])
    models = {}
    assert all(models.setdefault(step, theta) == theta for step, theta in client.steps)
    np.testing.assert_array_equal(run.theta, sound.theta)


def test_a_node_that_lost_its_state_says_so_and_goes_on(sound):
    run, _, _ = go(federation(participation=1.0), Restarted)
    assert [(r, c) for r, c, _ in run.incidents] == [(4, 1)]
    assert "lost its state" in run.incidents[0][2]
    assert np.all(np.isfinite(run.theta))


def test_a_client_that_raises_and_one_that_hangs():
    own = federation(participation=1.0, rounds=2, timeout=0.5)
    simulated = profl.worlds.simulated_clients(CASE, own.method, samples=30, seed=3)

    class Raises:
        def deploy(self, theta, samples):
            raise ConnectionError("no route")

    class Hangs:
        def deploy(self, theta, samples):
            time.sleep(3)

    run, _, _ = go(own, app=make_client_app(own, [Raises(), Hangs(), *simulated[2:]]))
    said = {client: what for _, client, what in run.incidents}
    assert said[0] == "raised ConnectionError: no route"
    assert "took longer than 0.5 s" in said[1]
    assert run.live.absent[0].tolist() == [0, 2, 2]


class Empty(InProcessGrid):
    def get_node_ids(self):
        return []


class OutOfRange(InProcessGrid):
    def __init__(self, app, nodes):
        super().__init__(app, nodes)
        for context in self.contexts.values():
            context.node_config["partition-id"] = 9


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (Empty, "No node is connected"),
        (OutOfRange, "partition-id must be a number from 0 to 3, got 9"),
    ],
)
def test_nodes_that_cannot_be_used(grid, message):
    started = time.monotonic()
    with pytest.raises(profl.InputError, match=message):
        go(federation(), grid)
    assert time.monotonic() - started < 30


def test_a_node_with_another_problem_or_none_is_refused():
    other = make_client_app(federation(samples=40))
    with pytest.raises(profl.InputError, match=r"another problem.*samples was"):
        go(federation(), app=other)
    own = federation()
    grid = InProcessGrid(make_client_app(), 4, {"federation": "no_such_module:federation"})
    with pytest.raises(profl.InputError, match="cannot import no_such_module"):
        ProFLStrategy(own, wait=1.0).run(grid)


def test_nobody_answers():
    class Dead(InProcessGrid):
        def deliver(self, message):
            return super().deliver(message) if "order" not in message.content else []

    with pytest.raises(profl.TooFewReports, match=r"2 rounds in a row.*did not answer"):
        go(federation(rounds=9), Dead, patience=2)


def test_the_server_app_reads_the_settings_and_writes_the_run(tmp_path):
    from flwr.app import Context

    own = federation(rounds=2)
    context = Context(1, 1, {}, RecordDict(), {"out": str(tmp_path / "run.npz"), "wait": 1, "timeout": 9})
    make_server_app(own)(InProcessGrid(make_client_app(own), 4), context)
    assert profl.load(tmp_path / "run.npz").rounds.tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 20])
def test_the_server_is_killed_and_resumed(kills, tmp_path):
    """Killed at random points; clients keep their states; a new run of the server ends with the same bits.

    In short: ``test_settled`` has a federation that goes on, and ``test_checkpoints`` a loop that is killed.
    """
    rounds_ = 12 if kills == 1 else 100  # enough to be killed in the middle every time
    own = federation(rounds=rounds_)
    whole = go(own, app=make_client_app(own, folder=tmp_path / "a"), checkpoint=tmp_path / "b")[0]
    out, rng = tmp_path / "theta.npy", np.random.default_rng(1)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "c"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    command = [sys.executable, "-m", "tests.flower_run", str(tmp_path / "killed"), str(out), str(rounds_)]
    server = tmp_path / "killed" / "server"

    def rounds():
        return max([int(f.name[6:14]) for f in server.glob("round-*.npz")], default=0)

    for _ in range(kills):
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **cache}, stderr=subprocess.DEVNULL)
        before, deadline = rounds(), time.monotonic() + 120
        while rounds() <= before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        assert process.poll() is None  # still under way
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **cache}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(out), whole.theta)


def test_hostile_reports_as_in_simulation():
    """Client 1 sends its move backwards, as the simulated attack does: the same trajectory."""

    class Backwards(InProcessGrid):
        def deliver(self, message):
            (reply,) = super().deliver(message)
            order = message.content.get("order")
            if order is not None and order["client"] == 1:
                sent, own = message.content["theta"]["0"].numpy(), reply.content["entry theta"]["0"].numpy()
                reply.content["entry theta"]["0"] = Array(sent + np.float32(-1.0) * (own - sent))
            return [reply]

    method = profl.pfl(aggregate="median")
    own = federation(method, participation=1.0)
    run = go(own, Backwards)[0]
    settings = {**SETTINGS, "participation": 1.0}
    del settings["seed"]
    fast = profl.simulate(CASE, method, seeds=[3], attack="sign_flip", hostile=[1], progress=False, **settings)
    np.testing.assert_allclose(run.theta, fast.theta, atol=1e-5)


@pytest.mark.slow
def test_memory_is_flat():
    """200 rounds of 100 clients in one process: what is in use at the end is what was in use after round 20."""
    import gc

    from profl.run.flower import Federation

    case = profl.cases.pricing(clients=100, goods=2)
    own = Federation(case, profl.pofl(), 100, rounds=200, local_steps=1, samples=20)
    used = {}

    class Watched(InProcessGrid):
        def deliver(self, message):
            order = message.content.get("order")
            if order is not None and order["client"] == 0:
                gc.collect()
                pages = int(Path("/proc/self/statm").read_text().split()[1])
                used[order["round"]] = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
            return super().deliver(message)

    ProFLStrategy(own, wait=60.0).run(Watched(make_client_app(own), 100))
    print({number: round(size, 1) for number, size in used.items() if number % 20 == 0})
    assert used[200] - used[20] < 10, used  # MiB, of some 400
