"""The client's side: a Flower ClientApp around any object with ``deploy(theta, samples) -> batch``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from profl import trees
from profl.checks import InputError
from profl.objects import import_object
from profl.run.flower import wire
from profl.run.flower.deployment_log import DeploymentLog
from profl.run.flower.federation import Federation, from_config
from profl.run.flower.identity import proof
from profl.run.flower.nodes import PREFIX
from profl.run.flower.state_store import StateStore
from profl.run.live.batches import Answer, collect_at, deploy_at
from profl.run.live.client_round import Read, RoundSetup, local_round
from profl.run.live.protection import hide_errors
from profl.run.live.simulated import SimulatedClient
from profl.run.live.workers import call_client
from profl.run.plan import Population, Settings, compile_for_settings, compiled_first_state
from profl.run.round import Work
from profl.run.run_history import client_work
from profl.run.step import client_view, start_round
from profl.typing import Theta

Clients = Callable[[int], Any] | Sequence[Any] | None
Folder = str | os.PathLike[str] | None


def make_client_app(
    federation: Federation | None = None,
    clients: Clients = None,
    *,
    folder: Folder = None,
) -> ClientApp:
    """A ClientApp for every node of a federation; the node's ``partition-id`` says which client it is.

    Args:
      federation: the same as the server's; None reads it from the run's settings (``federation.from_config``).
      clients: ``clients(number)`` or ``clients[number]`` has ``deploy(theta, samples) -> batch``. None takes what the
        run's setting ``client`` names, or else simulates the problem's own reaction.
      folder: where the client's state is kept on disk; the node's setting ``state`` where it is None.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Who am I, and what do I take the run to be?"""

        def answer() -> RecordDict:
            run_federation = federation or _settings(context)
            hello_record: dict[str, Any] = {PREFIX + name: text for name, text in run_federation.fingerprint.items()}
            hello_record["client"] = number = _number(context, run_federation)
            if key := context.node_config.get("key"):
                hello_record["signature"] = proof(str(key), message.content["hello"]["nonce"], context.node_id, number)
            return RecordDict({"hello": ConfigRecord(hello_record)})

        return _reply(message, answer)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        def answer() -> RecordDict:
            run_federation = federation or _settings(context)
            source = clients if clients is not None else _named_clients(context)
            place = folder if folder is not None else context.node_config.get("state")
            return answer_order(run_federation, source, message.content, context, place)  # type: ignore[arg-type]

        return _reply(message, answer)

    return app


def answer_order(
    federation: Federation,
    clients: Clients,
    content: RecordDict,
    context: Context,
    folder: Folder,
) -> RecordDict:
    """The answer to one order: R local steps and a report, or a report alone, from the state that the order names."""
    mailed = (federation.start, federation.mail) if federation.delivers else ()
    order = wire.read_order(content, federation.start, mailed)
    if order.digest != federation.digest:
        raise InputError("the server runs another problem or other settings than this node")
    if order.client != _number(context, federation):
        raise InputError(f"was asked as client {order.client}, is client {_number(context, federation)}")
    with hide_errors(federation.privacy, order.client):
        return _answer(federation, clients, order, context, folder)


def _answer(
    federation: Federation, clients: Clients, order: wire.Order, context: Context, folder: Folder
) -> RecordDict:
    """The answer to an order that has passed all checks."""
    settings, population = federation.plan.settings, federation.plan.population
    empty = compiled_first_state(settings, population, federation.start, order.client)
    store = StateStore(context.state, folder, order.client, {"token": order.token, "digest": order.digest})
    state = empty if order.since == 0 else store.load(order.since, empty)
    lost = state is None
    if lost and order.turn > 0:
        raise InputError("has lost its state in the middle of a round")
    state, theta = empty if lost else state, order.theta
    if federation.delivers and order.since > 0:
        row = trees.take(population, order.client)
        received, state = RECEIVE(settings, row, state, *order.mailed)
        theta = received if order.turn > 0 else theta
    if order.turn == 0:
        result = _deploy_and_report(federation, clients, order, theta, state, store.folder)
    else:
        result = _report_again(federation, order, theta, state)
    store.save(order.number, result.states, order.base)
    return wire.write_report(result, order, lost, None if federation.privacy is None else store.count_report())


def _receive(settings: Settings, row: Population, state: Any, theta: Theta, mail: Any) -> tuple[Theta, Any]:
    """The model and the state of a client after it has received its mail."""
    theta, method_state = settings.method.receive(client_view(settings, row), state.own, theta, mail)
    return theta, state._replace(own=method_state)


RECEIVE = compile_for_settings(_receive)


def _deploy_and_report(
    federation: Federation, clients: Clients, order: wire.Order, theta: Theta, state: Any, folder: Path | None
) -> Work:
    """The work of R local steps; what was deployed for this order before is not deployed again."""
    client = cache(partial(_client, federation, clients, order.client))  # made inside the limit of the first
    log = DeploymentLog(folder, order.token, federation.like)
    log.forget_before((order.round - 2) * federation.plan.settings.local_steps)  # the server may repeat its last round

    def ask(read: Read, theta: Theta, samples: int, step: int, world: Any) -> Answer:
        def deploy() -> Answer:
            answer: Answer = call_client(
                lambda: deploy_at(client(), theta, samples, step=step, world=world), read, federation.timeout
            )
            return answer

        def collect() -> Answer | None:
            name = f"{order.token}-{step}"
            answer: Answer | None = call_client(
                lambda: collect_at(client(), name, theta, samples),
                lambda data: None if data is None else read(data),
                federation.timeout,
            )
            return answer

        return log.once(step, theta, deploy, collect)

    setup = RoundSetup(federation.plan, federation.like, federation.figures, federation.privacy)
    return local_round(setup, order.round - 1, order.client, theta, state, ask)


def _report_again(federation: Federation, order: wire.Order, theta: Theta, state: Any) -> Work:
    """A report without a deployment."""
    settings, population = federation.plan.settings, federation.plan.population
    row = trees.take(population, order.client)
    return client_work(settings, row, start_round(settings, theta, state), 0, federation.figures)


def _reply(message: Message, answer: Callable[[], RecordDict]) -> Message:
    """The reply; after an error, its message, which Flower's own error replies do not carry to the server's log."""
    try:
        record = answer()
    except Exception as error:
        what = str(error) if isinstance(error, InputError) else f"raised {type(error).__name__}: {error}"
        record = RecordDict({"error": ConfigRecord({"what": what})})
    return Message(record, reply_to=message)


def _number(context: Context, federation: Federation) -> int:
    """The client number of a node, from its settings."""
    number = context.node_config.get("partition-id")
    if not isinstance(number, int) or not 0 <= number < federation.clients:
        raise InputError(
            f"the node's partition-id must be a number from 0 to {federation.clients - 1}, got {number!r}: "
            'start the node with --node-config "partition-id=0"'
        )
    return number


def _named_clients(context: Context) -> Clients:
    """The clients that the run's setting names; imported when a client is needed, so that errors are the client's."""
    name = context.run_config.get("client")
    return None if name is None else lambda number: _client_by_number(import_object(str(name)), number)


def _client_by_number(clients: Callable[[int], Any] | Sequence[Any], number: int) -> Any:
    """One client of a function or a sequence of clients."""
    return clients(number) if callable(clients) else clients[number]


def _client(federation: Federation, clients: Clients, number: int) -> Any:
    """The object that deploys for a client; a simulated one if there are no others."""
    if clients is None:
        return SimulatedClient(federation.plan, number)
    return _client_by_number(clients, number)


def _settings(context: Context) -> Federation:
    """The federation of a run's settings. Every message starts a new process, so compiled code is cached on disk."""
    if folder := os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return from_config(context.run_config)


app = make_client_app()
"""Reads everything from the run's settings: what ``clientapp`` in a pyproject can name."""
