"""Talking to a SuperLink with Flower's own command ``flwr``: its settings, a run's start, status and log."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from profl.checks import FailedError, InputError, words
from profl.deploy import certificates
from profl.deploy.ports import listens
from profl.deploy.private import private_file, private_folder

POLL_SECONDS = 3.0  # seconds between two looks at a run


def connect(home: Path, host: str, port: int, keys: Path) -> dict[str, str]:
    """The environment in which ``flwr`` talks to a SuperLink with TLS and the token; raises if none answers."""
    ca = keys.resolve() / "ca.crt"
    if not ca.is_file():
        raise InputError(f"{keys} has no ca.crt: it must be the authority that signed the SuperLink's certificate")
    token = certificates.token(keys)
    if not listens(port, host):
        raise InputError(
            f"no SuperLink answers at {host}:{port}: start one (profl flower up), or give its control port; from "
            f"another machine, ssh -L {port}:127.0.0.1:{port} MACHINE brings that port here"
        )
    _check_control_port(f"https://{host}:{port}", ca, token)
    configure(home, f"{host}:{port}", ca, token)
    return {**os.environ, **variables(home)}


def _check_control_port(address: str, authority: Path, token: str) -> None:
    """Raise ``InputError`` with a reason where ``flwr`` would only show a status code."""
    headers = {"authorization": f"Bearer {token}", "content-type": "application/protobuf"}
    trust = ssl.create_default_context(cafile=authority)
    try:
        with httpx.Client(verify=trust, headers=headers, timeout=30.0) as client:
            status = client.post(f"{address}/v1/control/list-runs").status_code
    except httpx.HTTPError as error:
        raise InputError(f"{address} does not answer as a SuperLink of this authority: {words(error)}") from error
    if status == httpx.codes.NOT_FOUND:
        raise InputError(f"{address} is for nodes alone: give the SuperLink's control port")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise InputError(f"the SuperLink at {address} refuses this {certificates.TOKEN}")


def configure(home: Path, address: str, authority: Path | None, token: str | None = None) -> None:
    """Write Flower's settings: the SuperLink's address, the authority of its certificate (None: no TLS), and the
    token, where ``flwr login`` would store it.
    """
    secure = {"insecure": True} if authority is None else {"root-certificates": str(authority)}
    content = {"superlink": {"default": "profl", "profl": {"address": address, **secure}}}
    private_folder(home)
    private_file(home / "config.toml", tomli_w.dumps(content))
    if token is not None:
        credentials = {"authn-type": "oidc", "oidc-access-token": token, "oidc-refresh-token": "none"}
        lines = {f"flower.account-auth.{address}.{name}": _encode(text) for name, text in credentials.items()}
        private_file(home / "credentials.yaml", json.dumps(lines))  # JSON is YAML


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def variables(home: Path) -> dict[str, str]:
    """Environment variables: Flower's settings in ``home``, no telemetry, nothing installed at run time."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def flwr(arguments: tuple[str, ...] | list[str], environment: dict[str, str], timeout: float = 60.0) -> str:
    """The output of Flower's command ``flwr``; raises ``FailedError`` if it fails."""
    program = Path(sys.executable).parent / "flwr"
    if not program.exists():
        raise InputError("flwr is not installed: pip install 'profl[flower]'")
    try:
        completed = subprocess.run(
            [str(program), *arguments], env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"flwr {arguments[0]} did not answer within {timeout:g} s") from error
    if completed.returncode != 0:
        raise FailedError(f"flwr {' '.join(arguments[:2])} failed:\n{completed.stdout}{completed.stderr}".strip())
    return completed.stdout


def submit(app: str | os.PathLike[str], environment: dict[str, str], extra: list[str]) -> str:
    """The id of a new run, by ``flwr run``."""
    answer = read_answer(flwr(["run", str(app), "profl", "--format", "json", *extra], environment, timeout=90.0))
    if "run-id" not in answer:
        raise FailedError(f"the SuperLink began no run: {words(answer)}")
    return str(answer["run-id"])


def run_status(run: str, environment: dict[str, str]) -> str:
    """The status of a run, such as "running" or "finished:failed"; ``flwr run`` itself hides a failure."""
    answer = read_answer(flwr(["ls", "profl", "--run-id", run, "--format", "json"], environment))
    if not answer.get("runs"):
        raise FailedError(f"the SuperLink does not know run {run}")
    return str(answer["runs"][0]["status"])


def read_answer(text: str) -> dict[str, Any]:
    """What ``flwr --format json`` says; raises ``FailedError`` with its reason, which comes with exit status 0."""
    try:
        answer = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise FailedError(f"flwr answered in no JSON: {words(text)}") from error
    if not isinstance(answer, dict) or not answer.get("success", False):
        reason = answer.get("error-message", text) if isinstance(answer, dict) else text
        raise FailedError(f"the SuperLink gave no answer: {words(reason)}")
    return answer


def wait_for_end(run: str, place: str, environment: dict[str, str], seconds: float) -> str:
    """The final status of a run at the SuperLink at ``place``, such as "finished:completed"."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            status = run_status(run, environment)
        except FailedError as error:
            raise FailedError(
                f"the SuperLink at {place} does not answer any more, so how run {run} ends is not known: {words(error)}"
            ) from error
        if status.startswith("finished"):
            return status
        if time.monotonic() > deadline:
            raise FailedError(f"run {run} is {status} after {seconds:g} s")
        time.sleep(POLL_SECONDS)


def run_log(run: str, environment: dict[str, str], lines: int = 25) -> str:
    """The last lines of the log of a run's server."""
    return "\n".join(flwr(["log", run, "profl", "--show"], environment).splitlines()[-lines:])
