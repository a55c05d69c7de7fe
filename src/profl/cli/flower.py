"""``profl flower run | certificates | up | superlink | node | submit``: federations over Flower, with true statuses."""

from __future__ import annotations

import signal
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from profl.cases import CASES
from profl.checks import FailedError, InputError
from profl.methods import ALGORITHMS
from profl.storage.paths import check_file

app = typer.Typer(no_args_is_help=True, help="Federations over Flower: simulated, on this machine, or on many.")

FEDERATED = [name for name, make in ALGORITHMS.items() if not make().pooled]

Clients = Annotated[int, typer.Option(help="Number of clients.")]
Wait = Annotated[float, typer.Option(help="Seconds that the whole run may take.")]
Keys = Annotated[Path, typer.Argument(help="A folder made by profl flower certificates.")]
Port = Annotated[int, typer.Option(help="Port of the SuperLink, for nodes.")]
ControlPort = Annotated[int, typer.Option(help="Port for those who submit, on loopback alone.")]
LargestRequest = Annotated[
    int, typer.Option(min=0, help="MiB that a node may always send at once; a run states what its reports need.")
]


@app.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError("this needs Flower: pip install 'profl[flower]'")


@app.command("run")
def run_(
    case: Annotated[str, typer.Argument(help=f"Case study: {', '.join(CASES)}.")],
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help=f"One of {', '.join(FEDERATED)}.")] = "profl",
    rounds: Annotated[int, typer.Option(help="Rounds of the federation.")] = 20,
    local_steps: Annotated[int, typer.Option("--local-steps", "-R", help="Local steps per round.")] = 5,
    samples: Annotated[int, typer.Option("--samples", "-n", help="Samples per client and deployment.")] = 500,
    seed: Annotated[int, typer.Option(help="Fixes the start and every draw.")] = 0,
    clients: Clients = 10,
    participation: Annotated[float, typer.Option(help="Share of clients asked per round.")] = 1.0,
    share: Annotated[int, typer.Option(help="Clusters in which Jacobians are shared; 0 for none.")] = 0,
    out: Annotated[Path, typer.Option(help="Where the finished run goes; profl.load reads it.")] = Path(
        "out/flower.npz"
    ),
    wait: Wait = 600.0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing.")] = False,
) -> None:
    """A case through Flower's own simulation on this machine.

    Example: profl flower run pricing --algorithm profl --rounds 20
    """
    from profl.cases import get as get_case
    from profl.deploy import LocalFederation, write_app

    get_case(case)
    check_file("--out", out)
    settings: dict[str, Any] = {"case": case, "algorithm": algorithm, "rounds": rounds, "local-steps": local_steps}
    settings |= {"samples": samples, "seed": seed, "clients": clients, "participation": participation, "share": share}
    settings["out"] = str(out.resolve())
    with tempfile.TemporaryDirectory(prefix="profl-") as folder:
        place = write_app(Path(folder) / "app", settings)
        with LocalFederation(Path(folder) / "federation", clients, None) as federation:
            number = federation.submit(place, simulated=clients)
            _finish(federation, number, wait, out, quiet)


@app.command("certificates")
def certificates_(
    folder: Annotated[Path, typer.Argument(help="Where they go; it must have none yet.")],
    clients: Clients = 3,
    hosts: Annotated[str, typer.Option(help="Names and addresses of the server.")] = "localhost,127.0.0.1",
    days: Annotated[int, typer.Option(help="How long they are valid.")] = 365,
) -> None:
    """An authority, a server certificate, one key pair per client, who has which, and the token of those who submit."""
    from profl.deploy.certificates import make

    for path in make(folder, clients, [host.strip() for host in hosts.split(",")], days):
        typer.echo(path)


@app.command("up")
def up(
    keys: Keys,
    clients: Clients = 3,
    port: Port = 9500,
    control_port: ControlPort = 9501,
    folder: Annotated[Path, typer.Option(help="Logs and the nodes' states.")] = Path("out/federation"),
    largest_request: LargestRequest = 0,
) -> None:
    """SuperLink and SuperNodes with TLS and client keys on this machine, until Ctrl-C.

    Then, in another terminal: profl flower submit APP --keys KEYS --port CONTROL_PORT
    """
    options: dict[str, Any] = {"control_port": control_port, "largest_request": largest_request}
    _keep_up(f"with {clients} SuperNodes", folder, clients, keys, port, **options)


@app.command("superlink")
def superlink_(
    keys: Keys,
    clients: Clients = 3,
    host: Annotated[str, typer.Option(help="Address at which nodes find it.")] = "0.0.0.0",
    port: Port = 9500,
    control_port: ControlPort = 9501,
    folder: Annotated[Path, typer.Option(help="Its log and database.")] = Path("out/federation"),
    largest_request: LargestRequest = 0,
) -> None:
    """A SuperLink alone, for nodes on other machines, until Ctrl-C; only registered keys get in.

    Runs are submitted from this machine: the control port is bound to loopback.
    """
    options: dict[str, Any] = {"control_port": control_port, "largest_request": largest_request}
    options |= {"host": host, "nodes": False}
    _keep_up(f"for {clients} clients", folder, clients, keys, port, **options)


@app.command("node")
def node_(
    keys: Annotated[Path, typer.Argument(help="A folder with ca.crt and this client's key.")],
    number: Annotated[int, typer.Argument(help="Which client this is, counted from 0.")],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")] = "127.0.0.1:9500",
    state: Annotated[Path | None, typer.Option(help="Where the client's state is kept.")] = None,
) -> None:
    """One client's SuperNode, until it is stopped; started again, it gets in at once and finds its state."""
    from profl.deploy.node import run_node

    run_node(keys, number, superlink, Path(f"out/state-{number}") if state is None else state)


@app.command("submit")
def submit_(
    folder: Annotated[Path, typer.Argument(help="A Flower app: a folder with a pyproject.toml.")],
    keys: Annotated[Path, typer.Option(help="A folder that has ca.crt and submit.token.")],
    port: Annotated[int, typer.Option(help="Control port of the SuperLink.")] = 9501,
    host: Annotated[str, typer.Option(help="Where the SuperLink is.")] = "127.0.0.1",
    wait: Wait = 3600.0,
) -> None:
    """Run an app on a SuperLink and wait for its end; exit status 1 unless it completed."""
    from profl.deploy.superlink import connect, run_log, submit, wait_for_end

    if not (folder / "pyproject.toml").is_file():
        raise InputError(f"{folder} is no Flower app: it has no pyproject.toml")
    with tempfile.TemporaryDirectory(prefix="profl-") as home:
        environment = connect(Path(home), host, port, keys)
        number = submit(folder, environment, [])
        typer.echo(f"run {number}")
        status = wait_for_end(number, f"{host}:{port}", environment, wait)
        if status != "finished:completed":
            typer.echo(run_log(number, environment), err=True)
    _say(status)


def _keep_up(what: str, folder: Path, clients: int, keys: Path, port: int, **options: Any) -> None:
    """A federation on this machine, until Ctrl-C or until one of its processes ends."""
    from profl.deploy import LocalFederation

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with LocalFederation(folder, clients, keys, port, **options) as federation:
        place = f"{federation.host}:{federation.port}, control port {federation.control_port}"
        typer.echo(f"SuperLink at {place}, {what}; logs in {folder}")
        try:
            while True:
                time.sleep(1)
                for name, child in federation.children.items():
                    if child.poll() is not None:
                        raise FailedError(f"{name} ended with status {child.returncode}:\n{federation.log(name)}")
        except KeyboardInterrupt:
            typer.echo("stopping")


def _finish(federation: Any, number: str, wait: float, out: Path, quiet: bool) -> None:
    from profl.deploy.superlink import run_log

    status = federation.wait(number, wait)
    if status != "finished:completed":
        typer.echo(run_log(number, federation.environment()), err=True)
    elif not quiet:
        from profl.results.files import load

        typer.echo(load(out).summary())
    _say(status, quiet)


def _say(status: str, quiet: bool = False) -> None:
    if not quiet or status != "finished:completed":
        typer.echo(status)
    if status != "finished:completed":
        raise typer.Exit(1)
