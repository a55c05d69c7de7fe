"""The SuperLink with access control on its ports: ``python -m profl.deploy.link FOLDER --keys KEYS --port 9500 ...``.

Flower serves three interfaces on one port, and whoever reaches it may submit code to the server and to every node:

    Fleet      for nodes; every call is signed with a registered key
    Control    submits, lists and stops runs, registers keys; open to all, unless an identity provider is at hand
    Runtime    for the processes that run the server's side of an app; open to all

Here they are on two ports. The public address serves only Fleet. The control port, on loopback, serves all three:
Control requires the bearer token of ``submit.token`` (by Flower's own account authentication, which takes any plugin),
Runtime a secret that only the SuperLink's own child gets. Without keys it is a simulation on this machine: no TLS, no
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
from profl.deploy.private import private_file, private_folder
from profl.run.flower.identity import VARIABLE

FLEET = "/v1/fleet/"
LOOPBACK = "127.0.0.1"
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


class PortFilter:
    """An ASGI app that lets requests outside the control port reach only the Fleet interface."""

    def __init__(self, app: Any, control_port: int) -> None:
        self.app, self.control_port = app, control_port

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _allowed(self, scope: Any) -> bool:
        """Whether a request may pass: from the control port anything, otherwise only Fleet."""
        host, port = scope.get("server") or (None, None)
        return (host == LOOPBACK and port == self.control_port) or (
            scope["type"] == "http" and scope["path"].startswith(FLEET)
        )


class Lifespan(SuperLinkLifespan):
    """Flower's lifespan; its child process authenticates at the Runtime interface with a secret."""

    secret: Path

    def _start_superexec_if_needed(self) -> None:
        config = self.config
        command = [str(Path(sys.executable).parent / "flower-superexec"), "--parent-pid", str(os.getpid())]
        command += ["--insecure"] if config.insecure else ["--root-certificates", str(config.ssl_ca_certfile)]
        command += ["--runtime-api-address", f"{config.host}:{config.port}"]
        command += ["--superexec-auth-secret-file", str(self.secret)]
        self.superexec_process = subprocess.Popen(command)


def make_app(keys: Path | None, folder: Path, control_port: int) -> tuple[Any, Any]:
    """(Flower's app behind a ``PortFilter``, its settings)."""
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
            os.environ[VARIABLE] = str(keys / certificates.CLIENTS)  # for the server's side of every run
    sys.argv = command
    config = replace(
        _parse_superlink_lifespan_config(), authn_plugin=TokenAuthentication(certificates.token(keys or folder))
    )
    lifespan = type("OwnLifespan", (Lifespan,), {"secret": secret})
    return PortFilter(create_app(config, lifespan), control_port), config


def serve(keys: Path | None, folder: Path, host: str, port: int | None, control_port: int) -> None:
    """Serve both ports until a signal arrives."""
    app, config = make_app(None if keys is None else keys.resolve(), folder.resolve(), control_port)
    addresses = [(LOOPBACK, control_port)] if port is None else [(host, port), (LOOPBACK, control_port)]
    settings = uvicorn.Config(
        app,
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
    arguments = parser.parse_args()
    serve(arguments.keys, arguments.folder, arguments.host, arguments.port, arguments.control_port)


if __name__ == "__main__":
    main()
