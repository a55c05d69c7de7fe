"""A SuperNode that gets in again at once: ``profl flower node``.

A SuperLink refuses a key whose last session it takes to be alive, and one that was killed counts as alive until its
heartbeats are missed: up to a minute, in which a node started anew gives up. A lock on the state's folder shows that
the last process is dead, since the system lets go of it with the process. So who gets the lock, and has the key, tells
the SuperLink that the old session is over, waits until the server must have noticed (it looks every three seconds), and
becomes Flower's own ``flower-supernode``.

The node's apps are started by ``profl.deploy.superexec`` and not by the node, so that no token stands in a command line
and the node's port on loopback lets in nobody who lacks the secret of this start.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from profl.checks import FailedError, InputError, words
from profl.deploy.ports import LOOPBACK, free_port
from profl.deploy.private import private_file, private_folder

SESSION_END_SECONDS = 4.0  # seconds in which a server that waits for the old session has seen that it is over
MAX_REFUSED_SECONDS = 90.0  # seconds after which a SuperLink that still refuses the key means it
RETRY_SECONDS = 2.0  # seconds between two attempts


def command(
    keys: Path, number: int, superlink: str, state: Path, key: Path | None = None, port: int | None = None
) -> list[str]:
    """Flower's command line for this node, with its client number, its key, and its port for its own apps."""
    key_path = key or keys / f"client-{number}"
    settings = f'partition-id={number} state="{state}" key="{key_path}"'
    line = ["flower-supernode", "--superlink", superlink, "--root-certificates", str(keys / "ca.crt")]
    line += ["--auth-supernode-private-key", str(key_path), "--host", LOOPBACK, "--port", str(port or free_port())]
    return [*line, "--node-config", settings]


def run_node(keys: Path, number: int, superlink: str, state: Path) -> None:
    """Replace this process by Flower's node."""
    keys, state = keys.resolve(), private_folder(state.resolve())
    missing = [name for name in ("ca.crt", f"client-{number}") if not (keys / name).is_file()]
    if missing:
        raise InputError(f"{keys} has no {', '.join(missing)}: a node needs the authority and its own key")
    program = Path(sys.executable).parent / "flower-supernode"
    if not program.exists():
        raise InputError(f"flower-supernode is not installed beside {sys.executable}: pip install 'profl[flower]'")
    lock = _lock(state)
    take_over(keys, keys / f"client-{number}", superlink, state)
    port, secret = free_port(), private_file(state / "superexec.secret", secrets.token_hex(32))
    own_apps = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    _start_superexec(port, secret)
    os.set_inheritable(lock, True)  # Flower's process holds it, and those that it starts do not
    os.execv(program, [str(program), *command(keys, number, superlink, state, port=port)[1:], *own_apps])


def _start_superexec(port: int, secret: Path) -> None:
    """Start the process that starts this node's apps; it ends with this one, which keeps its id when it is replaced."""
    line = [sys.executable, "-m", "profl.deploy.superexec", "--insecure", "--parent-pid", str(os.getpid())]
    line += ["--runtime-api-address", f"{LOOPBACK}:{port}", "--superexec-auth-secret-file", str(secret)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    subprocess.Popen(line, env={**os.environ, "PATH": path})


def _lock(state: Path) -> int:
    """The locked file of the state's folder; raises ``InputError`` if another process has it."""
    lock = os.open(state / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise InputError(f"another node works with {state}: stop it, or give this one a folder of its own") from error
    return lock


def take_over(keys: Path, key: Path, superlink: str, state: Path) -> None:
    """End the session of a dead process, if there is one. The caller must hold the lock."""
    id_file = state / "node"
    with _fleet(keys, key, superlink) as (client, public):
        if id_file.is_file() and (text := id_file.read_text().strip()).isdigit() and _end_session(client, int(text)):
            time.sleep(SESSION_END_SECONDS)
            return
        node = _activate(client, public, superlink)
        private_file(id_file, str(node))
        _end_session(client, node)  # Flower's process begins a session of its own


def _end_session(client: Any, node: int) -> bool:
    """End the node's session; whether there was one."""
    try:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))
    except httpx.HTTPError:
        return False
    return True


def _activate(client: Any, public: bytes, superlink: str) -> int:
    """The node's id, which the SuperLink assigns when it accepts the key."""
    deadline = time.monotonic() + MAX_REFUSED_SECONDS
    while True:
        try:
            request = ActivateNodeRequest(public_key=public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            return int(client.ActivateNode(request).node_id)
        except httpx.HTTPStatusError as error:
            why = f"the SuperLink at {superlink} refuses this key: {words(error.response.text)}"
        except httpx.HTTPError as error:
            why = f"no SuperLink answers at {superlink}: {words(error)}"
        if time.monotonic() > deadline:
            raise FailedError(why)
        time.sleep(RETRY_SECONDS)


@contextmanager
def _fleet(keys: Path, key: Path, superlink: str) -> Iterator[tuple[Any, bytes]]:
    """(Flower's own client with this key, the public key as Flower writes it)."""
    try:
        private = serialization.load_ssh_private_key(key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(f"{key} is no private key: {error}") from error
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    public = private.public_key()
    signed: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(private, public),
    ]
    authority = (keys / "ca.crt").read_bytes()
    with FleetHttpClient.from_server_address(superlink, False, authority, interceptors=signed) as client:
        yield client, public_key_to_bytes(public)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("keys", type=Path)
    parser.add_argument("number", type=int)
    parser.add_argument("--superlink", required=True)
    parser.add_argument("--state", type=Path, required=True)
    arguments = parser.parse_args()
    run_node(arguments.keys, arguments.number, arguments.superlink, arguments.state)


if __name__ == "__main__":
    main()
