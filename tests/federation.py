"""The smoke test behind ``make federation``: TLS, registered keys, real SuperNodes, and the simulation's own result.

Certificates are made, a SuperLink and three SuperNodes start on loopback, five rounds run, and the result is
``simulate``'s. A node whose key nobody registered is refused, and so is one that talks in plain text. Everything is
stopped at the end, also after a failure.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import profl
from profl.deploy import LocalFederation, certificates, write_app

SETTINGS = {"case": "pricing", "algorithm": "pofl", "clients": 3, "rounds": 5, "local-steps": 5, "samples": 200}


def main(fail: bool = False) -> None:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="profl-federation-") as name:
        folder = Path(name)
        certificates.make(folder / "keys", 4)  # the fourth is never registered
        app = write_app(folder / "app", {**SETTINGS, "seed": 1, "out": str(folder / "run.npz"), "wait": 120.0})
        federation = LocalFederation(folder / "federation", 3, folder / "keys")
        try:
            with federation:
                say(started, "SuperLink and three SuperNodes with TLS and registered keys are up")
                stranger = federation.start_node(0, key=folder / "keys" / "client-3", name="stranger")
                plain = start_plain(federation)
                run = federation.submit(app)
                if fail:
                    raise RuntimeError("a failure in the middle, as asked")
                status = federation.wait(run, 400.0)
                say(started, f"run {run}: {status}")
                assert status == "finished:completed", federation.log("superlink", 60)
                refused(federation, stranger)
                refused(federation, plain)
                say(started, "a node without a registered key and a plain-text node were refused")
            found = profl.load(folder / "run.npz")
        finally:
            gone(federation)
            say(started, "everything is stopped")
    expected = profl.simulate(
        profl.cases.pricing(clients=3), profl.pofl(), rounds=5, local_steps=5, samples=200, seeds=[1], progress=False
    )
    error = float(np.max(np.abs(found.theta - expected.theta)))
    assert error <= 1e-5, f"differs from simulate by {error}"
    assert not found.incidents, found.incidents
    say(started, f"five rounds equal to simulate (largest difference {error:.1e})")


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
