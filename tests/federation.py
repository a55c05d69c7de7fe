"""The smoke test behind ``make federation``: TLS, registered keys, real SuperNodes, and the simulation's own result.

Certificates are made, a SuperLink and three SuperNodes start on loopback, five rounds run, and the result is
``simulate``'s, though node 2 is killed in the middle and started again at once. Refused are a node whose key nobody
registered, one that talks in plain text, one with a registered key that says that it is another client, a stranger
with ca.crt who wants to submit, list or stop runs, and a user of this machine without the secret of a node's apps. No
command line shows a token at any time. Everything is stopped at the end, also after a failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
from flwr.proto.control_pb2 import ListRunsRequest, StartRunRequest, StopRunRequest

import profl
from profl.checks import FailedError
from profl.deploy import LocalFederation, certificates, write_app
from profl.deploy.superlink import configure, flwr, run_log
from profl.run.flower import InProcessGrid, ProFLStrategy, make_client_app
from profl.run.flower.federation import from_config

SETTINGS = {"case": "pricing", "algorithm": "pofl", "clients": 3, "rounds": 5, "local-steps": 5, "samples": 200}


def main(fail: bool = False) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="profl-federation-") as name:
        folder = Path(name)
        certificates.make(folder / "keys", 5)  # 3 is registered and says that it is 0, 4 is never registered
        settings = {**SETTINGS, "seed": 1, "out": str(folder / "run.npz"), "checkpoint": str(folder / "server")}
        app = write_app(folder / "app", {**settings, "wait": 120.0, "timeout": 300.0})
        federation = LocalFederation(folder / "federation", 3, folder / "keys")
        try:
            with federation, watched_command_lines() as seen:
                say(started, "SuperLink and three SuperNodes with TLS and registered keys are up")
                federation.register(3)
                federation.start_node(0, key=folder / "keys" / "client-3", name="impostor")
                stranger = federation.start_node(0, key=folder / "keys" / "client-4", name="stranger")
                plain = start_plain(federation)
                run = federation.submit(app)
                if fail:
                    raise RuntimeError("a failure in the middle, as asked")
                shut_out(federation)
                say(started, "a stranger with ca.crt cannot submit, list or stop runs")
                apps_door(federation)
                say(started, "a user of a node's machine gets none of its tasks")
                wait_for_round(folder / "server", 2)
                federation.kill("node-2")
                federation.start_node(2)
                say(started, "node 2 was killed after round 2 and started again")
                status = federation.wait(run, 400.0)
                say(started, f"run {run}: {status}")
                assert status == "finished:completed", federation.log("superlink", 60)
                told = run_log(run, federation.environment(), 500).splitlines()
                said = [line for line in told if "asked again" in line or " reports, " in line]
                print(*said, sep="\n", flush=True)
                assert sum("3 reports, estimated risk" in line for line in said) == 5, said
                refused(federation, stranger)
                refused(federation, plain)
                say(started, "a node without a registered key and a plain-text node were refused")
                show_no_token(seen)
                say(started, "no command line showed a token")
            found = profl.load(folder / "run.npz")
        finally:
            gone(federation)
            say(started, "everything is stopped")
    expected = profl.simulate(
        profl.cases.pricing(clients=3), profl.pofl(), rounds=5, local_steps=5, samples=200, seeds=[1], progress=False
    )
    error = float(np.max(np.abs(found.theta - expected.theta)))
    assert error <= 1e-5, f"differs from simulate by {error}"
    ((_, client, what),) = found.incidents  # and not a word of node 2
    assert client == 0, found.incidents
    assert "says that it is client 0, and does not have that client's key" in what
    say(started, f"the impostor: {what}")
    regret = float(np.max(np.abs(found.deployed_regret[:, 1:] - expected.deployed_regret[:, 1:])))
    assert regret <= 1e-4, f"the deployed regret differs by {regret}"
    say(started, f"five rounds equal to simulate (largest difference {error:.1e})")
    logging.getLogger("flwr").setLevel(logging.WARNING)
    own = from_config({**SETTINGS, "seed": 1})
    undisturbed = ProFLStrategy(own).run(InProcessGrid(make_client_app(own), 3))
    np.testing.assert_array_equal(found.theta, undisturbed.theta)
    say(started, "and to the bit equal to the same federation without kills")


def shut_out(federation: LocalFederation) -> None:
    """With ca.crt alone: nothing at the public port, and at the control port nothing without the token."""
    trust = ssl.create_default_context(cafile=federation.keys / "ca.crt")
    requests = {"start-run": StartRunRequest(), "list-runs": ListRunsRequest(), "stop-run": StopRunRequest(run_id=1)}
    calls = {f"control/{name}": request.SerializeToString() for name, request in requests.items()}
    with httpx.Client(verify=trust, headers={"content-type": "application/protobuf"}, timeout=30) as client:
        for path, body in {**calls, "runtime/acquire-task": b""}.items():
            for port, status in ((federation.port, (404,)), (federation.control_port, (401, 403))):
                found = client.post(f"https://127.0.0.1:{port}/v1/{path}", content=body)
                assert found.status_code in status, (path, port, found.status_code, found.text)
    for port in (federation.port, federation.control_port):
        configure(federation.folder / "elsewhere", f"127.0.0.1:{port}", federation.keys / "ca.crt")
        environment = {**federation.environment(), "FLWR_HOME": str(federation.folder / "elsewhere")}
        try:
            said = flwr(("ls", "profl"), environment)
        except FailedError:
            continue
        raise AssertionError(f"flwr ls got an answer at {port}: {said}")
    for name in ("superlink.db", "superexec.secret", "flower/credentials.yaml"):
        assert (federation.folder / name).stat().st_mode & 0o077 == 0, name


def apps_door(federation: LocalFederation) -> None:
    """The port at which a node gives work to its own apps is open to all users of its machine."""
    lines = [line for line in command_lines() if str(federation.folder / "state-0") in " ".join(line)]
    ports = {line[line.index("--port") + 1] for line in lines if "--port" in line}
    assert len(ports) == 1, lines
    with httpx.Client(headers={"content-type": "application/protobuf"}, timeout=30) as client:
        for path in ("acquire-task", "pull-task-input"):
            found = client.post(f"http://127.0.0.1:{next(iter(ports))}/v1/runtime/{path}")
            assert found.status_code in (401, 403), (path, found.status_code, found.text)


def command_lines() -> list[list[str]]:
    """The command lines of all processes, as every user of this machine can read them."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(entry.read_text(errors="replace").split("\0"))
    return found


@contextlib.contextmanager
def watched_command_lines() -> Iterator[set[tuple[str, ...]]]:
    """The command lines with a token, or a file of one, that are seen while this lasts."""
    seen: set[tuple[str, ...]] = set()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            seen.update(tuple(line) for line in command_lines() if any(part.startswith("--token") for part in line))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def show_no_token(seen: set[tuple[str, ...]]) -> None:
    """Tokens came in files, but for those of the impostor's apps, which Flower starts."""
    if not os.path.isdir("/proc/1"):
        return
    own = [line for line in seen if "--token-file" in line]
    for program in ("flwr-serverapp", "flwr-clientapp"):
        assert any(program in " ".join(line) for line in own), (program, seen)
    assert not [line for line in seen if "flwr-serverapp" in " ".join(line) and "--token" in line], seen


def wait_for_round(folder: Path, number: int) -> None:
    deadline = time.monotonic() + 400
    while not (folder / f"round-{number:08d}.npz").exists():
        assert time.monotonic() < deadline, f"round {number} is not done"
        time.sleep(0.2)


def start_plain(federation: LocalFederation) -> str:
    """A SuperNode that does not speak TLS."""
    command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{federation.port}"]
    federation.spawn("plain", [*command, "--max-retries", "1", "--node-config", "partition-id=0"])
    return "plain"


def refused(federation: LocalFederation, name: str) -> None:
    """It gave up or tries in vain, and got no id; a node that differs only in its key, or in TLS, got one."""
    log, good = ((federation.folder / f"{each}.log").read_text(errors="replace") for each in (name, "node-0"))
    assert "Exit Code" in log or "Connection attempt failed" in log, log
    assert "SuperNode ID" not in log, log
    assert "SuperNode ID" in good, good
    print("\n".join(line for line in log.splitlines() if "Exit Code" in line or "[code" in line), flush=True)


def gone(federation: LocalFederation) -> None:
    """No process is left, and the port is free."""
    assert not federation.children
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", federation.port)) != 0, "the SuperLink still listens"
    for entry in Path("/proc").glob("[0-9]*/cmdline") if os.path.isdir("/proc/1") else ():
        try:
            assert str(federation.folder) not in entry.read_text(errors="replace"), f"still running: {entry}"
        except OSError:
            continue


def say(started: float, line: str) -> None:
    print(f"{time.monotonic() - started:6.1f} s  {line}", flush=True)


if __name__ == "__main__":
    main("--fail" in sys.argv[1:])
