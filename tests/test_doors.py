"""Who may do what at a SuperLink, by its own app in this process: a stranger who has ca.crt, a node, who submits."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys

import pytest

import profl

pytest.importorskip("flwr")

import httpx
from flwr.proto.control_pb2 import ListRunsRequest, ListRunsResponse, StartRunRequest, StopRunRequest

from profl.checks import FailedError
from profl.deploy import certificates, node
from profl.deploy.node import _lock
from profl.deploy.superlink import configure, submit, variables, wait_for_end
from tests.flower_link import PROTOBUF, made_app

pytestmark = pytest.mark.filterwarnings("ignore:No path_separator:DeprecationWarning")  # of what Flower's database uses
CONTROL, PUBLIC = 9501, 9500


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder, 2)
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("link") / "federation"


@pytest.fixture(scope="module")
def app(keys, place):
    with made_app(keys, place, CONTROL) as made:
        yield made


def ask(app, port, path, request=None, token=None, host="127.0.0.1", **headers):
    """The answer to a call that comes in at a port."""

    async def call():
        base = f"https://{host}:{port}"
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            own = PROTOBUF | headers | ({} if token is None else {"authorization": f"Bearer {token}"})
            body = b"" if request is None else request.SerializeToString()
            return await client.post(path, content=body, headers=own)

    return asyncio.run(call())


CALLS = {
    "/v1/control/start-run": StartRunRequest(),
    "/v1/control/list-runs": ListRunsRequest(),
    "/v1/control/stop-run": StopRunRequest(run_id=1),
    "/v1/control/register-node": None,
    "/v1/control/list-nodes": None,
    "/v1/control/stream-logs": None,
}


@pytest.mark.parametrize("path", CALLS)
def test_a_stranger_can_do_nothing(app, keys, path):
    """Neither at the public port, with the token or not, nor at the control port without it."""
    token = certificates.token(keys)
    assert ask(app, PUBLIC, path, CALLS[path]).status_code == 404
    assert ask(app, PUBLIC, path, CALLS[path], token).status_code == 404
    assert ask(app, CONTROL, path, CALLS[path], host="10.0.0.1").status_code == 404
    for wrong in (None, "x", token[:-1], token + "x", token.upper()):
        assert ask(app, CONTROL, path, CALLS[path], wrong).status_code == 401
    assert ask(app, CONTROL, path, CALLS[path], authorization=f"Basic {token}").status_code == 401


def test_who_has_the_token_lists_runs(app, keys):
    found = ask(app, CONTROL, "/v1/control/list-runs", ListRunsRequest(), certificates.token(keys))
    assert found.status_code == 200
    assert not ListRunsResponse.FromString(found.content).run_dict


def test_nobody_logs_in_to_get_a_token(app, keys):
    for path in ("get-login-details", "get-auth-tokens", "refresh-auth-tokens"):
        said = ask(app, CONTROL, f"/v1/control/{path}")
        assert certificates.token(keys).encode() not in said.content
        assert len(said.content) < 200
        assert ask(app, PUBLIC, f"/v1/control/{path}").status_code == 404


@pytest.mark.parametrize("path", ["acquire-task", "push-messages", "get-nodes", "pull-task-input"])
def test_the_servers_own_processes_prove_that_they_are(app, path):
    """Flower leaves acquire-task open, with which a stranger gets a run's task and its token."""
    assert ask(app, PUBLIC, f"/v1/runtime/{path}").status_code == 404
    assert ask(app, CONTROL, f"/v1/runtime/{path}").status_code in (401, 403)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json", "/v1/responses", "/v1//control/list-runs", "/", "/health"])
def test_nothing_else_is_at_the_public_port(app, path):
    assert ask(app, PUBLIC, path).status_code == 404


@pytest.mark.parametrize("path", ["/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs"])
def test_no_way_round_the_corner(app, keys, path):
    found = ask(app, PUBLIC, path, ListRunsRequest(), certificates.token(keys))
    assert found.status_code in (401, 404, 405)


def test_nodes_get_through_and_have_to_sign(app):
    found = ask(app, PUBLIC, "/v1/fleet/activate-node")
    assert found.status_code == 401
    assert b"SuperNode authentication" in found.content


def test_what_is_secret_is_for_its_owner_alone(app, keys, place):
    for path in (place, *place.iterdir(), keys / "submit.token", keys / "client-0"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert {path.name for path in place.iterdir()} >= {"superlink.db", "superexec.secret"}


def test_flwr_finds_the_token_where_it_keeps_its_own(keys, tmp_path):
    token = certificates.token(keys)
    configure(tmp_path / "home", "127.0.0.1:9501", keys / "ca.crt", token)
    assert (tmp_path / "home" / "credentials.yaml").stat().st_mode & 0o077 == 0
    code = (
        "from flwr.cli.utils import load_cli_auth_plugin_from_connection as load; p = load('127.0.0.1:9501'); "
        "p.load_tokens(); print(dict(p.write_tokens_to_metadata([]))['flwr-oidc-access-token'])"
    )
    environment = os.environ | variables(tmp_path / "home")
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == token, done.stderr


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "submit.token").write_text("guess")
    with pytest.raises(profl.InputError, match="at least 20 characters, got 5"):
        certificates.token(tmp_path)
    with pytest.raises(profl.InputError, match=r"has no submit\.token"):
        certificates.token(tmp_path / "nowhere")


def test_two_nodes_cannot_share_a_state(tmp_path):
    """The second is refused while the first lives, and gets in at once when it is killed."""
    code = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    command = [sys.executable, "-S", "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout.readline() == b"1\n"
        with pytest.raises(profl.InputError, match="another node works with"):
            _lock(tmp_path)
        first.kill()
    os.close(_lock(tmp_path))


LAUNCH = """
import flwr.supercore.cli as cli
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec
import profl.deploy.superexec as superexec

def launch():
    for kind in (TaskType.SERVER_APP, TaskType.CLIENT_APP, TaskType.SIMULATION):
        SubprocessExecutor().launch(ExecutionSpec(kind, "127.0.0.1:1", "TOKEN", True, None, False, None, False, 1))

cli.flower_superexec = launch
superexec.main()
"""
APP = """#!{python} -IS
import sys, time
path = sys.argv[sys.argv.index("--token-file") + 1]
print(sys.argv[0].rsplit("/")[-1], open(path).read() == "TOKEN", open("/proc/self/cmdline").read().count("TOKEN"))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_no_token_stands_in_a_command_line(tmp_path):
    """Flower starts its apps with ``--token TOKEN``, which every user of the machine can read."""
    for name in ("flwr-serverapp", "flwr-clientapp", "flwr-simulation"):
        (tmp_path / name).write_text(APP.format(python=sys.executable))
        (tmp_path / name).chmod(0o700)
    secret = secrets.token_hex(32)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    code = LAUNCH.replace("TOKEN", secret)
    for path in tmp_path.iterdir():
        path.write_text(path.read_text().replace("TOKEN", secret))
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert sorted(done.stdout.split("\n")[:-1]) == [
        f"{name} True 0" for name in ("flwr-clientapp", "flwr-serverapp", "flwr-simulation")
    ], done.stderr


def test_a_nodes_own_port_is_for_its_own_apps(keys, tmp_path, monkeypatch):
    """Flower lets everybody who reaches it take a node's tasks; here they have the secret of this start."""
    begun, became = [], []
    monkeypatch.setattr(node, "take_over", lambda *_: None)
    monkeypatch.setattr(node.subprocess, "Popen", lambda line, **_: begun.append(line))
    monkeypatch.setattr(node.os, "execv", lambda program, line: became.append(line))
    node.run_node(keys, 0, "127.0.0.1:9500", tmp_path / "state")
    ((starter,), (line,)) = begun, became
    secret = tmp_path / "state" / "superexec.secret"
    assert line[line.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert line[line.index("--isolation") + 1] == "process"
    assert starter[starter.index("--superexec-auth-secret-file") + 1] == str(secret)
    assert starter[starter.index("--runtime-api-address") + 1] == f"127.0.0.1:{line[line.index('--port') + 1]}"
    assert len(first := secret.read_text()) == 64
    assert secret.stat().st_mode & 0o077 == 0
    with monkeypatch.context() as patched:
        patched.setattr(node, "_lock", lambda state: os.open(os.devnull, os.O_RDONLY))
        node.run_node(keys, 0, "127.0.0.1:9500", tmp_path / "state")
    assert secret.read_text() != first


DYING = {
    "dying": '{"success": false, "error-message": "Connection\\nrefused"}',
    "no words": '{"success": false}',
    "no run": '{"success": true, "runs": []}',
    "no object": '["{"]',
    "no JSON": "Traceback ...",
}


@pytest.mark.parametrize("said", DYING.values(), ids=DYING)
def test_a_superlink_that_dies_while_a_run_is_waited_for_is_one_sentence(said, monkeypatch):
    """``flwr ls`` exits with 0 there; it was a KeyError."""
    monkeypatch.setattr("profl.deploy.superlink.flwr", lambda *_, **__: said)
    with pytest.raises(FailedError) as failed:
        wait_for_end("7", "127.0.0.1:9501", {}, 10.0)
    assert str(failed.value).startswith("the SuperLink at 127.0.0.1:9501 does not answer any more, so how run 7 ends")
    assert str(failed.value).isprintable()  # one line
    with pytest.raises(FailedError):
        submit("app", {}, [])
