"""A federation on this machine: SuperLink and SuperNodes as child processes, each wait bounded, all of them stopped.

Every child leads a process group of its own, because SuperLink and SuperNodes start further processes; stopping one
stops its group. Output goes to log files in the federation's folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from profl.checks import FailedError, InputError
from profl.deploy import certificates
from profl.deploy.ports import check_port, free_port, listens
from profl.deploy.superlink import configure, flwr, run_status, submit, variables

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
        self.port = free_port() if port == 0 else check_port(port)
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
        else:
            command += ["--ssl-certfile", str(self.keys / "server.pem"), "--ssl-keyfile", str(self.keys / "server.key")]
            command += ["--ssl-ca-certfile", str(self.keys / "ca.crt"), "--enable-supernode-auth"]
            command += ["--database", str(self.folder / "superlink.db")]
        configure(home, f"127.0.0.1:{self.port}", None if self.keys is None else self.keys / "ca.crt")
        self.spawn("superlink", command)
        deadline = time.monotonic() + READY
        while not listens(self.port):
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
        self.spawn(name, [*command, "--node-config", settings])
        return name

    def spawn(self, name: str, command: list[str]) -> None:
        """A child that runs one of Flower's programs, with its output in a log."""
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
            **variables(self.folder / "flower"),
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
