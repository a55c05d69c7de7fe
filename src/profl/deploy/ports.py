"""Ports of this machine: find a free one, check one, see whether one accepts connections."""

from __future__ import annotations

import socket

from profl.checks import InputError

LOOPBACK = "127.0.0.1"


def free_port() -> int:
    """A free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(port: int) -> int:
    """The port, if it is free; raises ``InputError`` otherwise."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"port {port} is taken or not allowed ({error}): choose another with --port") from error
    return port


def listens(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts connections at the port."""
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True
