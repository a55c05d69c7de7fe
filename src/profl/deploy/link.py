"""The SuperLink with access control on its ports: ``python -m profl.deploy.link FOLDER --keys KEYS --port 9500 ...``.

Flower serves three interfaces on one port, and whoever reaches it may submit code to the server and to every node:

    Fleet      for nodes; every call is signed with a registered key
    Control    submits, lists and stops runs, registers keys; open to all, unless an identity provider is at hand
    Runtime    for the processes that run the server's side of an app; open to all

Here they are on two ports. The public address serves only Fleet. The control port, on loopback, serves all three:
Control requires the bearer token of ``submit.token`` (by Flower's own account authentication, which takes any plugin),
Runtime a secret that only the SuperLink's own child gets. ``gate`` reads no request before it knows who sent it, and
``connections`` closes those that keep the server waiting. Without keys it is a simulation on this machine: no TLS, no
nodes, only the control port.
"""

from __future__ import annotations

import argparse
import hmac
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import ACCESS_TOKEN_KEY, ISOLATION_MODE_PROCESS, NOOP_ACCOUNT_NAME, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.http_logging import get_uvicorn_log_config
from flwr.supercore.logger import console_handler
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
from flwr.superlink.main import create_app

from profl.deploy import certificates
from profl.deploy.connections import BoundedConnection, allow_many_connections
from profl.deploy.gate import Gate
from profl.deploy.ports import LOOPBACK
from profl.deploy.private import private_file, private_folder
from profl.run.flower import identity, message_size

Metadata = Sequence[tuple[str, str | bytes]]


class TokenAuthentication(ControlAuthnPlugin):
    """Flower's authentication by a fixed bearer token; there is no login."""

    def __init__(self, token: str) -> None:
        self.token = token

    def validate_tokens_in_metadata(self, metadata: Metadata) -> tuple[bool, AccountInfo | None]:
        token = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        token = token.encode() if isinstance(token, str) else token
        if not hmac.compare_digest(token, self.token.encode()):
            return False, None
        return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=NOOP_ACCOUNT_NAME)

    def get_login_details(self) -> None:
        return None

    def get_auth_tokens(self, device_code: str) -> None:
        return None

    def refresh_tokens(self, metadata: Metadata) -> tuple[None, None]:
        return None, None


class Lifespan(SuperLinkLifespan):
    """Flower's lifespan; its child process authenticates at the Runtime interface with a secret."""

    secret: Path

    def _start_superexec_if_needed(self) -> None:
        config = self.config
        command = [sys.executable, "-m", "profl.deploy.superexec", "--parent-pid", str(os.getpid())]
        command += ["--insecure"] if config.insecure else ["--root-certificates", str(config.ssl_ca_certfile)]
        command += ["--runtime-api-address", f"{config.host}:{config.port}"]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        self.superexec_process = subprocess.Popen(command)


def make_app(keys: Path | None, folder: Path, control_port: int, largest_request: int = 0) -> tuple[Any, Any]:
    """(Flower's app behind a ``Gate``, its settings); ``largest_request`` bytes a node may always send at once."""
    secret = private_file(private_folder(folder) / "superexec.secret", secrets.token_hex(32))
    command = ["flower-superlink", "--host", LOOPBACK, "--port", str(control_port)]
    command += ["--isolation", ISOLATION_MODE_PROCESS, "--superexec-auth-secret-file", str(secret)]
    command += ["--disable-runtime-dependency-installation"]
    if keys is None:
        command += ["--insecure", "--simulation"]
    else:
        certificates.check(keys)
        database = private_file(folder / "superlink.db")  # what SQLite writes beside it gets the same mode
        command += ["--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")]
        command += ["--ssl-ca-certfile", str(keys / "ca.crt"), "--database", str(database), "--enable-supernode-auth"]
        if (keys / certificates.CLIENTS).is_file():
            os.environ[identity.VARIABLE] = str(keys / certificates.CLIENTS)  # for the server's side of every run
    size_file = folder / "largest-request"
    os.environ[message_size.VARIABLE] = str(size_file)
    sys.argv = command
    token = certificates.token(keys or folder)
    config = replace(_parse_superlink_lifespan_config(), authn_plugin=TokenAuthentication(token))
    lifespan = type("OwnLifespan", (Lifespan,), {"secret": secret})
    return Gate(create_app(config, lifespan), control_port, token, size_file, largest_request), config


def serve(
    keys: Path | None, folder: Path, host: str, port: int | None, control_port: int, largest_request: int = 0
) -> None:
    """Serve both ports until a signal arrives."""
    allow_many_connections()
    app, config = make_app(None if keys is None else keys.resolve(), folder.resolve(), control_port, largest_request)
    addresses = [(LOOPBACK, control_port)] if port is None else [(host, port), (LOOPBACK, control_port)]
    settings = uvicorn.Config(
        app,
        http=BoundedConnection,
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        log_config=get_uvicorn_log_config(console_handler.level),
        proxy_headers=False,  # a client must not choose its own address
        access_log=False,
    )
    uvicorn.Server(settings).run(sockets=[socket.create_server(address) for address in addresses])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--keys", type=Path)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int)
    parser.add_argument("--control-port", type=int, required=True)
    parser.add_argument("--largest-request", type=int, default=0)
    arguments = parser.parse_args()
    serve(**vars(arguments))


if __name__ == "__main__":
    main()
