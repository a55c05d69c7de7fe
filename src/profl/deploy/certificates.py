"""Certificates and keys for a federation: one authority, one server certificate, one key pair per client.

ca.crt, ca.key        the authority that everybody trusts; the key signs and then stays where it is
server.pem, .key      the SuperLink's certificate, for the names and addresses given
client-0, client-0.pub ...   what a SuperNode proves its identity with; the .pub is registered at the SuperLink
clients.json          which client has which public key; the server holds every node to it
submit.token          who has it may submit runs, which is to run code on the server and on every node
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from profl import checks
from profl.checks import InputError

REQUIRED = ("ca.crt", "server.pem", "server.key")
CLIENTS = "clients.json"
TOKEN = "submit.token"
MIN_TOKEN_LENGTH = 20  # characters


def make(
    folder: str | os.PathLike[str], clients: int, hosts: Sequence[str] = ("localhost", "127.0.0.1"), days: int = 365
) -> list[Path]:
    """The files that were written into ``folder``; an existing authority is not overwritten.

    The server's certificate is for loopback as well, where runs are submitted.
    """
    place = Path(folder)
    hosts = list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"]))
    checks.positive_int("clients", clients)
    checks.positive_int("days", days)
    if (place / "ca.crt").exists():
        raise InputError(f"{place} has certificates already; choose another folder, or remove them")
    place.mkdir(parents=True, exist_ok=True)
    ca_key, ca = _authority(days)
    key, certificate = _server(ca_key, ca, hosts, days)
    files = {"ca.crt": _pem(ca), "ca.key": _private(ca_key), "server.pem": _pem(certificate)}
    files["server.key"] = _private(key)
    public_keys: dict[str, str] = {}
    for number in range(clients):
        client_key = ec.generate_private_key(ec.SECP384R1())
        files[f"client-{number}"] = _private(client_key, serialization.PrivateFormat.OpenSSH)
        public = serialization.PublicFormat.OpenSSH
        text = client_key.public_key().public_bytes(serialization.Encoding.OpenSSH, public)
        files[f"client-{number}.pub"] = text + b"\n"
        public_keys[str(number)] = text.decode()
    files[CLIENTS] = (json.dumps(public_keys, indent=2) + "\n").encode()
    files[TOKEN] = (secrets.token_urlsafe(32) + "\n").encode()
    for name, content in files.items():
        secret = name.endswith((".key", ".token")) or (name.startswith("client-") and not name.endswith(".pub"))
        descriptor = os.open(place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
    return [place / name for name in files]


def check(folder: str | os.PathLike[str], clients: int = 0) -> Path:
    """The folder, if it holds what a federation needs and nothing has expired."""
    place = Path(folder)
    names = [*REQUIRED, *(f"client-{i}{end}" for i in range(clients) for end in ("", ".pub"))]
    names += [CLIENTS, TOKEN] if clients else []
    missing = [name for name in names if not (place / name).is_file()]
    if missing:
        raise InputError(f"{place} has no {', '.join(missing)}: profl flower certificates {place} makes them")
    now = datetime.datetime.now(datetime.UTC)
    for name in ("ca.crt", "server.pem"):
        try:
            certificate = x509.load_pem_x509_certificate((place / name).read_bytes())
        except ValueError as error:
            raise InputError(f"{place / name} is no certificate: {error}") from error
        ends = certificate.not_valid_after_utc
        if not certificate.not_valid_before_utc <= now <= ends:
            raise InputError(f"{place / name} expired on {ends:%Y-%m-%d}: make new certificates in another folder")
    return place


def token(folder: Path) -> str:
    """The token that is needed to submit runs, from the folder's file."""
    try:
        text = (folder / TOKEN).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InputError(
            f"{folder} has no {TOKEN}, without which nobody may submit: profl flower certificates writes it"
        ) from error
    if len(text) < MIN_TOKEN_LENGTH:
        raise InputError(f"{folder / TOKEN} must hold at least {MIN_TOKEN_LENGTH} characters, got {len(text)}")
    return text


def _authority(days: int) -> tuple[Any, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "profl federation authority")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _builder(name, name, key.public_key(), days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return key, builder.sign(key, hashes.SHA256())


def _server(ca_key: Any, ca: x509.Certificate, hosts: Sequence[str], days: int) -> tuple[Any, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    builder = _builder(name, ca.subject, key.public_key(), days)
    builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return key, builder.add_extension(signer, critical=False).sign(ca_key, hashes.SHA256())


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: Any, form: Any = serialization.PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
