"""A federation on this machine: SuperLink and SuperNodes as child processes, each wait bounded, all of them stopped.

Every child leads a process group of its own, because SuperLink and SuperNodes start further processes; stopping one
stops its group. Output goes to log files in the federation's folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from profl.checks import FailedError, InputError
from profl.engines.flower import certificates

READY = 30.0  # seconds until something that was started must be there


class LocalFederation:
    """``with LocalFederation(folder, ...) as federation:`` a SuperLink and SuperNodes that are gone afterwards.

    Args:
      folder: logs, Flower's own settings and the nodes' states go here.
      clients: SuperNodes to start; node i gets partition-id i and, with keys, key i.
      keys: a folder made by ``certificates.make``; None runs Flower's simulation without TLS.
      port: of the SuperLink; 0 takes a free one.
    """

    def __init__(
        self, folder: str | os.PathLike[str], clients: int, keys: str | os.PathLike[str] | None, port: int = 0
    ) -> None:
        self.folder, self.clients = Path(folder).resolve(), clients
        self.keys = None if keys is None else certificates.check(Path(keys).resolve(), clients)
        self.port = free_port() if port == 0 else _check_port(port)
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalFederation:
        try:
            self.start_link()
            if self.keys is not None:
                for number in range(self.clients):
                    self.flwr("supernode", "register", str(self.keys / f"client-{number}.pub"), "profl")
                for number in range(self.clients):
                    self.start_node(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_link(self) -> None:
        """The SuperLink; returns once it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        home = self.folder / "flower"
        home.mkdir(exist_ok=True)
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.keys is None:
            command += ["--insecure", "--simulation"]
            secure = "insecure = true"
        else:
            command += ["--ssl-certfile", str(self.keys / "server.pem"), "--ssl-keyfile", str(self.keys / "server.key")]
            command += ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--enable-supernode-auth"]
            command += ["--database", str(self.folder / "superlink.db")]
            secure = f'root-certificates = "{self.keys / "ca.crt"}"'
        _configure(home, f"127.0.0.1:{self.port}", secure)
        self._spawn("superlink", command)
        deadline = time.monotonic() + READY
        while not _listens(self.port):
            self._must_run("superlink", deadline)
            time.sleep(0.1)

    def start_node(self, number: int, key: str | os.PathLike[str] | None = None, name: str | None = None) -> str:
        """A SuperNode with TLS and a key (its own unless another is given); returns the name of the child."""
        assert self.keys is not None
        name = name or f"node-{number}"
        state = self.folder / f"state-{number}"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self.keys / "ca.crt"), "--host", "127.0.0.1"]
        command += ["--port", str(free_port())]
        command += ["--auth-supernode-private-key", str(key or self.keys / f"client-{number}")]
        settings = f'partition-id={number} num-partitions={self.clients} state="{state}"'
        self._spawn(name, [*command, "--node-config", settings])
        return name

    def _spawn(self, name: str, command: list[str]) -> None:
        program = Path(sys.executable).parent / command[0]
        if not program.exists():
            raise InputError(f"{command[0]} is not installed beside {sys.executable}: pip install 'profl[flower]'")
        with open(self.folder / f"{name}.log", "ab") as log:
            self.children[name] = subprocess.Popen(
                [str(program), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(),
                cwd=self.folder,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """End a child and everything it started at once, as a crash would."""
        child = self.children.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=10)

    def stop(self) -> None:
        """End every child and what it started: asked first, made to after ten seconds."""
        for child in self.children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for child in self.children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
        for name in list(self.children):
            self.kill(name)

    def log(self, name: str, lines: int = 15) -> str:
        path = self.folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def environment(self) -> dict[str, str]:
        """Flower's settings in our own folder, no telemetry, nothing installed at run time."""
        own = {
            **_quiet(self.folder / "flower"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        }
        return {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"), **os.environ, **own}

    def _must_run(self, name: str, deadline: float) -> None:
        child = self.children[name]
        if child.poll() is not None:
            raise FailedError(f"{name} ended with status {child.returncode}:\n{self.log(name)}")
        if time.monotonic() > deadline:
            raise FailedError(f"{name} is not ready after {READY:g} s:\n{self.log(name)}")

    # -- runs ----------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str, timeout: float = 60.0) -> str:
        """``flwr ARGUMENTS``; its output, or an error with it."""
        return flwr(arguments, self.environment(), timeout)

    def submit(self, app: str | os.PathLike[str], *, simulated: int = 0) -> str:
        """Start a run of the app in a folder; its id. ``simulated`` is how many clients a simulation has."""
        extra = []
        if simulated:
            extra = ["--federation-config", f"num-supernodes={simulated} client-resources-num-cpus=1"]
        return submit(app, self.environment(), extra)

    def wait(self, run: str, timeout: float) -> str:
        """The run's final status, such as "finished:completed"."""
        deadline = time.monotonic() + timeout
        while True:
            asked = time.monotonic()
            status = run_status(run, self.environment())
            if status.startswith("finished"):
                return status
            self._must_run("superlink", deadline + READY)
            if time.monotonic() > deadline:
                raise FailedError(f"run {run} is {status} after {timeout:g} s:\n{self.log('superlink')}")
            time.sleep(max(3.0, 2 * (time.monotonic() - asked)))  # asking takes a process with seconds of imports


def connect(home: Path, host: str, port: int, keys: Path) -> dict[str, str]:
    """The environment in which ``flwr`` talks to a SuperLink with TLS; refuses one that is not there."""
    ca = keys.resolve() / "ca.crt"
    if not ca.is_file():
        raise InputError(f"{keys} has no ca.crt: it must be the authority that signed the SuperLink's certificate")
    if not _listens(port, host):
        raise InputError(f"no SuperLink answers at {host}:{port}: start one (profl flower up), or give its port")
    _configure(home, f"{host}:{port}", f'root-certificates = "{ca}"')
    return {**os.environ, **_quiet(home)}


def _configure(home: Path, address: str, secure: str) -> None:
    text = f'[superlink]\ndefault = "profl"\n\n[superlink.profl]\naddress = "{address}"\n{secure}\n'
    (home / "config.toml").write_text(text)


def _quiet(home: Path) -> dict[str, str]:
    """Flower's settings in a folder of our own, no telemetry, nothing installed at run time."""
    return {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def flwr(arguments: tuple[str, ...] | list[str], environment: dict[str, str], timeout: float = 60.0) -> str:
    program = Path(sys.executable).parent / "flwr"
    if not program.exists():
        raise InputError("flwr is not installed: pip install 'profl[flower]'")
    try:
        done = subprocess.run(
            [str(program), *arguments], env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired as error:
        raise FailedError(f"flwr {arguments[0]} did not answer within {timeout:g} s") from error
    if done.returncode != 0:
        raise FailedError(f"flwr {' '.join(arguments[:2])} failed:\n{done.stdout}{done.stderr}".strip())
    return done.stdout


def submit(app: str | os.PathLike[str], environment: dict[str, str], extra: list[str]) -> str:
    """``flwr run``; the id of the run."""
    text = flwr(["run", str(app), "profl", "--format", "json", *extra], environment, timeout=90.0)
    try:
        answer = json.loads(text[text.index("{") :])
    except ValueError as error:
        raise FailedError(f"flwr run said: {text}") from error
    if not answer.get("success", False):
        raise FailedError(f"flwr run failed: {answer.get('error-message', text)}")
    return str(answer["run-id"])


def run_status(run: str, environment: dict[str, str]) -> str:
    """ "pending", "running", "finished:completed", "finished:failed", ...: ``flwr run`` itself hides a failure."""
    text = flwr(["ls", "profl", "--run-id", run, "--format", "json"], environment)
    answer = json.loads(text[text.index("{") :])
    return str(answer["runs"][0]["status"])


def run_log(run: str, environment: dict[str, str], lines: int = 25) -> str:
    """The end of what the server's side of a run said."""
    return "\n".join(flwr(["log", run, "profl", "--show"], environment).splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise InputError(f"port {port} is taken or not allowed ({error}): choose another with --port") from error
    return port


def _listens(port: int, host: str = "127.0.0.1") -> bool:
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError:
        return False
    return True
