"""Whose node it is: a node signs what the server asks it with its client's key, and the server has the public keys.

Flower sees to it that nobody takes the messages of a registered key without having that key. Which client a node is, it
leaves to the node to say: ``clients.json``, which ``profl flower certificates`` writes, binds client numbers to keys.
The signed words name the node and a number that is used once, so that nobody else can make use of an answer.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from profl.checks import InputError
from profl.storage.atomic import atomic

SCHEME = ec.ECDSA(hashes.SHA384())
NONCE = re.compile(r"[0-9a-f]{32,128}")
VARIABLE = "PROFL_IDENTITIES"
"""The environment variable with which whoever runs the SuperLink names ``clients.json``, whatever an app says."""


def proof(key: str | os.PathLike[str], nonce: Any, node: int, client: int) -> bytes:
    """A node's signature, made with the private key in a file."""
    if not isinstance(nonce, str) or not NONCE.fullmatch(nonce):
        raise InputError("was asked to sign something that is no nonce")
    try:
        private = serialization.load_ssh_private_key(Path(key).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the key that the node's setting 'key' names: {error}") from error
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise InputError("the node's key must be an ECDSA key, as profl flower certificates makes them")
    return private.sign(_signed_text(nonce, node, client), SCHEME)


class Identities:
    """The public key of every client, from a file: ``{"0": "ecdsa-sha2-nistp384 AAAA...", ...}``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            public_keys = json.loads(Path(path).read_text(encoding="utf-8"))
            self.keys = {
                int(client): serialization.load_ssh_public_key(text.encode()) for client, text in public_keys.items()
            }
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path} does not bind clients to public keys: {error}") from error
        if len(set(public_keys.values())) < len(public_keys):
            raise InputError(f"{path} binds one key to several clients")

    def check(self, client: int, nonce: str, node: int, signature: Any) -> None:
        """Refuse a node that does not prove that it is this client."""
        public = self.keys.get(client)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise InputError(f"says that it is client {client}, to which no key is bound")
        if not isinstance(signature, bytes):
            raise InputError(f"says that it is client {client}, and signed nothing: its settings must name its key")
        try:
            public.verify(signature, _signed_text(nonce, node, client), SCHEME)
        except InvalidSignature as error:
            raise InputError(f"says that it is client {client}, and does not have that client's key") from error


def stored_token(folder: Path, fresh: str, restart: bool) -> str:
    """The token of a run, by which clients find their states: the stored one after a restart, otherwise ``fresh``."""
    path = folder / "token"
    if restart and path.is_file():
        return path.read_text().strip()
    with atomic(path, private=True) as temporary:
        temporary.write_text(fresh)
    return fresh


def _signed_text(nonce: str, node: int, client: int) -> bytes:
    return f"profl hello {nonce} node {node} client {client}".encode()
