"""What a SuperLink reads of a request, and how long it waits for one: strangers, nodes, those who say nothing."""

from __future__ import annotations

import gzip
import itertools
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import TASK_TOKEN_HEADER

from profl.deploy import certificates
from profl.deploy.connections import MAX_WAIT_SECONDS
from profl.deploy.ports import free_port
from profl.run.flower import message_size
from profl.run.flower.message_size import ALLOWANCE, largest_request, message_bytes, state_message_bytes
from tests.flower_link import PROTOBUF, call, made_app, register, served, signed
from tests.flower_run import federation

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")
MIB = 2**20
PUSH = "/v1/fleet/push-object"
READ = (403, 500)  # Flower has read the request: there is no such run


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder, 2)
    return folder


@pytest.fixture(scope="module")
def app(keys, tmp_path_factory):
    with made_app(keys, tmp_path_factory.mktemp("link") / "federation", 9501) as gate:
        gate.node = register(gate, keys / "client-0")  # client-1 is not registered
        yield gate


def body(mib=400):
    return itertools.repeat(b"x" * MIB, mib)


CONTROL_PORT = 9501
UNSIGNED = {
    "nothing": (PUSH, {}, 9500),
    "a signature of nothing": (
        PUSH,
        {"flwr-public-key": "eA==", "flwr-signature": "eA==", "flwr-timestamp": "x"},
        9500,
    ),
    "no registered path": ("/v1/fleet/nothing", {}, 9500),
    "not for this port": ("/v1/control/start-run", {}, 9500),
    "no token of a run": ("/v1/runtime/push-object", {}, CONTROL_PORT),
    "a guessed token of a run": ("/v1/runtime/push-object", {TASK_TOKEN_HEADER: "0" * 64}, CONTROL_PORT),
}


@pytest.mark.parametrize(("path", "headers", "port"), UNSIGNED.values(), ids=UNSIGNED)
def test_nothing_is_read_of_a_request_whose_sender_is_unknown(app, path, headers, port):
    """Flower buffers the body first: four requests of 400 MB made a server of 275 MiB one of 2,893."""
    status, taken = call(app, path, PROTOBUF | headers, body(), port)
    assert status in (401, 404)
    assert taken == 0


@pytest.mark.parametrize("path", ["/v1/control/start-run", "/v1/control/get-login-details", "/v1/runtime/acquire-task"])
@pytest.mark.parametrize("stated", [{"content-length": str(400 * MIB)}, {"content-length": "9" * 60}, {}])
def test_little_is_read_of_what_shows_no_token_in_its_headers(app, path, stated):
    status, taken = call(app, path, PROTOBUF | {"flwr-superexec-signature": "x"} | stated, body(), CONTROL_PORT)
    assert status == 413
    assert taken <= (ALLOWANCE + MIB if not stated else 0)


def test_a_signature_holds_for_some_minutes_and_for_one_time(app, keys):
    good = signed(keys / "client-0")
    for changed in ({"flwr-timestamp": "2026-01-01T00:00:00+00:00"}, {"flwr-timestamp": good["flwr-timestamp"][:-1]}):
        assert call(app, PUSH, good | changed, body()) == (401, 0)
    other = {"flwr-public-key": signed(keys / "client-1")["flwr-public-key"]}
    assert call(app, PUSH, good | other, body()) == (401, 0)


def test_a_key_that_nobody_registered_is_told_so_and_sends_little(app, keys):
    assert call(app, PUSH, signed(keys / "client-1"), body())[1] <= ALLOWANCE + MIB
    status, _ = call(app, "/v1/fleet/activate-node", signed(keys / "client-1"), iter([b""]))
    assert status == 401


def object_of(app, size):
    request = PushObjectRequest(node=Node(node_id=app.node), run_id=1, object_id="0" * 64, object_content=b"x" * size)
    return request.SerializeToString()


def test_a_node_sends_what_a_report_of_the_runs_needs(app, keys, monkeypatch):
    """Held by a file that the run writes when it begins; where nothing is stated, ALLOWANCE."""
    honest, larger = object_of(app, ALLOWANCE // 2), object_of(app, 2 * ALLOWANCE)

    def push(content, **stated):
        return call(app, PUSH, signed(keys / "client-0", **stated), iter([content]))[0]

    assert push(honest) in READ
    assert push(larger) == push(larger, **{"content-length": str(len(larger))}) == 413
    own = federation()
    monkeypatch.setenv(message_size.VARIABLE, str(app.size_file))
    monkeypatch.setattr(message_size, "message_bytes", lambda federation: 4 * ALLOWANCE)
    state_message_bytes(own)
    assert push(larger) in READ
    assert push(object_of(app, 5 * ALLOWANCE)) == 413
    monkeypatch.undo()
    monkeypatch.setenv(message_size.VARIABLE, str(app.size_file))
    state_message_bytes(own)  # a smaller run beside the larger one does not lower it
    assert push(larger) in READ
    app.size_file.unlink()


def test_an_option_lets_nodes_send_more(keys, tmp_path):
    with made_app(keys, tmp_path / "federation", 9501, 3 * ALLOWANCE) as app:
        app.node = register(app, keys / "client-0")
        assert call(app, PUSH, signed(keys / "client-0"), iter([object_of(app, 2 * ALLOWANCE)]))[0] in READ
        assert call(app, PUSH, signed(keys / "client-0"), iter([object_of(app, 4 * ALLOWANCE)]))[0] == 413


def test_a_request_is_bounded_by_the_report_and_by_a_chunk_of_it():
    assert ALLOWANCE < message_bytes(federation()) < ALLOWANCE + 20_000
    assert largest_request(message_bytes(federation())) == message_bytes(federation())
    assert largest_request(10**9) == ALLOWANCE + 5 * MIB


@pytest.mark.parametrize("content", ["", "many", "-1", "9" * 10**6, "\x00", "1e9"])
def test_a_size_that_cannot_be_read_is_the_allowance(content, tmp_path):
    (tmp_path / "size").write_text(content)
    assert message_size.stated_message_bytes(tmp_path / "size") <= max(ALLOWANCE, 10**message_size.MAX_DIGITS)
    assert message_size.stated_message_bytes(tmp_path) == ALLOWANCE


def test_a_gzip_bomb_is_not_inflated(app, keys):
    """200 MB in 200 kB. Nothing on the way inflates a request: it is no message, whatever its headers say."""
    bomb = gzip.compress(b"\x00" * 200 * MIB, 9)
    assert len(bomb) < ALLOWANCE
    for encoding in ("gzip", "deflate", "gzip, gzip"):
        status, _ = call(app, PUSH, signed(keys / "client-0", **{"content-encoding": encoding}), iter([bomb]))
        assert status == 400


@pytest.mark.parametrize("content", [b"", b"\xff" * 1000, b"\x0a" * 1000, b"\x0a\x04\x0a\x02" * 50_000])
def test_a_registered_node_that_sends_what_is_no_message_harms_nobody(app, keys, content):
    for path in ("push-messages", "push-object", "pull-messages", "activate-node", "send-node-heartbeat"):
        status, _ = call(app, f"/v1/fleet/{path}", signed(keys / "client-0"), iter([content]))
        assert 400 <= status < 600
    sound = PushMessagesRequest(node=Node(node_id=app.node)).SerializeToString()
    assert call(app, "/v1/fleet/pull-messages", signed(keys / "client-0"), iter([sound]))[0] == 200


# -- connections -----------------------------------------------------------------------------------------------------

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\n"
HALF = {
    "nothing": b"",
    "half of the headers": REQUEST,
    "half of a body": REQUEST + b"content-length: 10\r\n\r\nabc",
    "half of the second request": REQUEST + b"content-length: 0\r\n\r\n" + b"POST / HT",
}
WAIT = 0.4
LARGE = 64 * MIB


async def echo(scope, receive, send):
    while (await receive()).get("more_body"):
        pass
    text = b"ok" if scope["path"] == "/" else b"x" * LARGE
    length = str(len(text)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    for first in range(0, len(text), MIB):
        await send({"type": "http.response.body", "body": text[first : first + MIB], "more_body": True})
    await send({"type": "http.response.body"})


@pytest.fixture(scope="module")
def port(keys):
    number = free_port()
    files = {"ssl_keyfile": keys / "server.key", "ssl_certfile": keys / "server.pem"}
    with served(echo, number, WAIT, timeout_keep_alive=60, **files):
        yield number


def connected(port, keys):
    trust = ssl.create_default_context(cafile=keys / "ca.crt")
    return trust.wrap_socket(socket.create_connection(("127.0.0.1", port), 10), server_hostname="127.0.0.1")


@pytest.mark.parametrize("said", HALF.values(), ids=HALF)
def test_a_half_open_connection_is_closed(port, keys, said):
    """uvicorn waits for ever for a request, and for the rest of one."""
    with connected(port, keys) as half:
        half.sendall(said)
        started = time.monotonic()
        try:
            while half.recv(1000):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        assert WAIT / 2 < time.monotonic() - started < 10 * WAIT


def test_a_connection_that_does_not_read_is_closed(port, keys):
    with connected(port, keys) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        time.sleep(5 * WAIT)
        read = 0
        try:
            while part := deaf.recv(MIB):
                read += len(part)
        except (ConnectionError, ssl.SSLError):
            pass
        assert read < LARGE


@pytest.mark.slow
@pytest.mark.faults
def test_a_handshake_that_never_comes_is_not_waited_for(port):
    """By asyncio, after the same minute."""
    with socket.create_connection(("127.0.0.1", port), 10) as silent:
        silent.settimeout(2 * MAX_WAIT_SECONDS)
        started = time.monotonic()
        assert silent.recv(1) == b""
        assert 0.5 * MAX_WAIT_SECONDS < time.monotonic() - started < 1.5 * MAX_WAIT_SECONDS


def test_a_connection_that_makes_requests_stays_open(port, keys):
    trust = ssl.create_default_context(cafile=keys / "ca.crt")
    with httpx.Client(verify=trust) as client:
        for _ in range(8):
            assert client.post(f"https://127.0.0.1:{port}/", content=b"x" * 100_000).text == "ok"
            time.sleep(WAIT / 2)
        assert len(client._transport._pool.connections) == 1


# -- a SuperLink of its own --------------------------------------------------------------------------------------------


def memory(process):
    """MiB that a process has, and has had at most."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_large_requests_cost_a_superlink_no_memory(keys, tmp_path):
    """Four of 400 MB from strangers, at either port, and connections that say nothing."""
    public, control = free_port(), free_port()
    command = [sys.executable, "-m", "profl.deploy.link", str(tmp_path / "federation"), "--keys", str(keys)]
    command += ["--host", "127.0.0.1", "--port", str(public), "--control-port", str(control)]
    trust = ssl.create_default_context(cafile=keys / "ca.crt")
    environment = {**os.environ, "FLWR_HOME": str(tmp_path / "home"), "FLWR_TELEMETRY_ENABLED": "0"}
    with subprocess.Popen(command, env=environment, start_new_session=True) as superlink:
        try:
            deadline = time.monotonic() + 60
            while socket.socket().connect_ex(("127.0.0.1", control)) != 0:
                assert time.monotonic() < deadline
                time.sleep(0.2)
            time.sleep(2.0)
            before = memory(superlink)["VmRSS"]
            silent = [socket.create_connection(("127.0.0.1", public)) for _ in range(200)]
            for port, path in ((public, PUSH), (control, PUSH), (control, "/v1/runtime/push-object")):
                for _ in range(4):
                    with httpx.Client(verify=trust, headers=PROTOBUF, timeout=60) as client:
                        try:
                            status = client.post(f"https://127.0.0.1:{port}{path}", content=body()).status_code
                        except httpx.TransportError:  # closed before all of it was sent
                            status = 401
                        assert status == 401
            after = memory(superlink)["VmHWM"]
            print(f"{before:.0f} MiB before, {after:.0f} MiB at most")
            assert after - before < 40
            for one in silent:
                one.close()
        finally:
            os.killpg(superlink.pid, 15)
            superlink.wait(20)
