"""A federation on this machine: SuperLink and SuperNodes as child processes, each wait bounded, all of them stopped.

Every child leads a process group of its own, because SuperLink and SuperNodes start further processes; stopping one
stops its group. Output goes to log files in the federation's folder.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from profl.checks import FailedError, InputError
from profl.deploy import certificates
from profl.deploy.ports import check_port, free_port, listens
from profl.deploy.private import private_file, private_folder
from profl.deploy.superlink import configure, flwr, run_status, submit, variables

START_SECONDS = 30.0  # seconds until something that was started must be there


class LocalFederation:
    """``with LocalFederation(folder, ...) as federation:`` a SuperLink and SuperNodes that are gone afterwards.

    Args:
      folder: logs, Flower's own settings and the nodes' states go here.
      clients: SuperNodes to start; node i gets partition-id i and, with keys, key i.
      keys: a folder made by ``certificates.make``; None runs Flower's simulation without TLS.
      port: of the SuperLink, for nodes; 0 takes a free one.
      control_port: for those who submit, on loopback alone; 0 takes a free one. A simulation has one port.
      host: where nodes find the SuperLink; another one than loopback is for nodes on other machines.
      nodes: start the SuperNodes; False registers their keys alone.
      largest_request: MiB that a node may always send in one request. A run of profl states what its reports need;
        other Flower apps do not.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        clients: int,
        keys: str | os.PathLike[str] | None,
        port: int = 0,
        *,
        control_port: int = 0,
        host: str = "127.0.0.1",
        nodes: bool = True,
        largest_request: int = 0,
    ) -> None:
        self.folder, self.clients = Path(folder).resolve(), clients
        self.keys = None if keys is None else certificates.check(Path(keys).resolve(), clients)
        self.port = free_port() if port == 0 else check_port(port)
        self.control_port = self.port
        if self.keys is not None:
            self.control_port = free_port() if control_port == 0 else check_port(control_port)
        if self.keys is not None and self.port == self.control_port:
            raise InputError(f"nodes and those who submit need two ports, got {port} for both")
        self.host, self.nodes, self.largest_request = host, nodes, largest_request
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalFederation:
        try:
            self.start_link()
            if self.keys is not None:
                for number in range(self.clients):
                    self.register(number)
                for number in range(self.clients if self.nodes else 0):
                    self.start_node(number)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_link(self) -> None:
        """Start the SuperLink and wait until it listens."""
        home, control = private_folder(self.folder) / "flower", f"127.0.0.1:{self.control_port}"
        command = ["python", "-m", "profl.deploy.link", str(self.folder), "--control-port", str(self.control_port)]
        if self.keys is None:
            private_file(self.folder / certificates.TOKEN, secrets.token_urlsafe(32))
            configure(home, control, None, certificates.token(self.folder))
        else:
            configure(home, control, self.keys / "ca.crt", certificates.token(self.keys))
            command += ["--keys", str(self.keys), "--host", self.host, "--port", str(self.port)]
            command += ["--largest-request", str(self.largest_request * 2**20)]
        self.spawn("superlink", command)
        deadline = time.monotonic() + START_SECONDS
        while not listens(self.control_port):
            self._must_run("superlink", deadline)
            time.sleep(0.1)

    def register(self, number: int) -> None:
        """Register a client's key at the SuperLink; a key that is registered already is left."""
        assert self.keys is not None
        try:
            self.flwr("supernode", "register", str(self.keys / f"client-{number}.pub"), "profl")
        except FailedError as error:
            if "already in use" not in str(error):
                raise

    def start_node(self, number: int, key: str | os.PathLike[str] | None = None, name: str | None = None) -> str:
        """Start a SuperNode with TLS and a key (its own unless another is given); returns the name of the child."""
        assert self.keys is not None
        name, superlink = name or f"node-{number}", f"127.0.0.1:{self.port}"
        if key is None:
            command = ["python", "-m", "profl.deploy.node", str(self.keys), str(number), "--superlink", superlink]
            self.spawn(name, [*command, "--state", str(self.folder / f"state-{number}")])
        else:
            from profl.deploy.node import command as plain

            self.spawn(name, plain(self.keys, number, superlink, self.folder / f"state-{name}", Path(key)))
        return name

    def spawn(self, name: str, command: list[str]) -> None:
        """Start a child that runs a program installed beside this Python, with its output in a log."""
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
        """Kill a child and its process group at once, as a crash would."""
        child = self.children.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=10)

    def stop(self) -> None:
        """End every child and its process group: SIGTERM first, SIGKILL after ten seconds."""
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
        """The last lines of a child's log."""
        path = self.folder / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    def environment(self) -> dict[str, str]:
        """The environment of the children: Flower's settings in the federation's folder, no telemetry."""
        settings = {
            **variables(self.folder / "flower"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
        }
        return {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self.folder / "compiled"),
            **os.environ,
            **settings,
        }

    def _must_run(self, name: str, deadline: float) -> None:
        """Raise ``FailedError`` if a child has ended or the deadline has passed."""
        child = self.children[name]
        if child.poll() is not None:
            raise FailedError(f"{name} ended with status {child.returncode}:\n{self.log(name)}")
        if time.monotonic() > deadline:
            raise FailedError(f"{name} is not ready after {START_SECONDS:g} s:\n{self.log(name)}")

    # -- runs ----------------------------------------------------------------------------------------------------------

    def flwr(self, *arguments: str, timeout: float = 60.0) -> str:
        """The output of ``flwr ARGUMENTS``; raises ``FailedError`` with it if the command fails."""
        return flwr(arguments, self.environment(), timeout)

    def submit(self, app: str | os.PathLike[str], *, simulated: int = 0) -> str:
        """The id of a new run of the app in a folder; ``simulated`` is the number of clients of a simulation."""
        extra = []
        if simulated:
            extra = ["--federation-config", f"num-supernodes={simulated} client-resources-num-cpus=1"]
        return submit(app, self.environment(), extra)

    def wait(self, run: str, timeout: float) -> str:
        """The run's final status, such as "finished:completed"."""
        deadline = time.monotonic() + timeout
        while True:
            started = time.monotonic()
            status = run_status(run, self.environment())
            if status.startswith("finished"):
                return status
            self._must_run("superlink", deadline + START_SECONDS)
            if time.monotonic() > deadline:
                raise FailedError(f"run {run} is {status} after {timeout:g} s:\n{self.log('superlink')}")
            time.sleep(max(3.0, 2 * (time.monotonic() - started)))  # asking takes a process with seconds of imports
