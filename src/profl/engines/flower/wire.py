"""What crosses the network, as Flower records; and nothing is believed before it is checked.

server to client   theta, the shared Jacobian, and: which round, which client, after which of its rounds to go on
client to server   theta, its own Jacobian where they are shared, and six numbers. Never samples.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from profl.checks import InputError
from profl.client.step import Shared
from profl.engines.rounds import Work
from profl.typing import Theta


class Remote(NamedTuple):
    """What the server keeps of a client that keeps its state itself."""

    since: Any  # () int32: the last of its rounds that was accepted, 0 for none; its state after that one counts
    shared: Any = ()  # Shared, where Jacobians are shared
    own: Any = ()  # the Jacobian it reported last


class Order(NamedTuple):
    """What a client is told to do."""

    theta: Theta
    shared: Any
    client: int
    round: int  # counted from 1
    since: int
    token: str  # of the run, across restarts of the server
    digest: str  # of the fingerprint


def write_order(order: Order) -> RecordDict:
    record = RecordDict({"theta": arrays(order.theta), "order": ConfigRecord(_plain(order))})
    if order.shared != ():
        record["shared"] = arrays(order.shared)
    return record


def _plain(order: Order) -> dict[str, Any]:
    return {name: getattr(order, name) for name in ("client", "round", "since", "token", "digest")}


def read_order(record: RecordDict, theta: Theta, shared: Any) -> Order:
    """The order in a message; ``theta`` and ``shared`` give the shapes."""
    told: dict[str, Any] = {name: record["order"][name] for name in ("client", "round", "since", "token", "digest")}
    found = tree(record["theta"], theta, "theta")
    return Order(found, tree(record["shared"], shared, "shared") if shared != () else (), **told)


def write_report(work: Work, order: Order, lost: bool) -> RecordDict:
    numbers: dict[str, Any] = {
        "client": order.client,
        "round": order.round,
        "loss": float(work.loss),
        "kept": float(work.kept),
        "samples": int(work.samples),
        "jacobian_error": float(work.jacobian_error),
        "sound": int(work.sound),
        "lost": int(lost),
    }
    record = RecordDict({"theta": arrays(work.theta), "report": MetricRecord(numbers)})
    if work.jacobian is not None:
        record["jacobian"] = arrays(work.jacobian)
    return record


def read_report(record: RecordDict, sent: Order, jacobian: Any) -> tuple[Work, bool]:
    """(the report, whether the client had lost its state); ``InputError`` says what is wrong with it.

    ``sent`` is the order that it answers, ``jacobian`` has the shape of one, or is None.
    """
    if "error" in record:
        raise InputError(str(record["error"].get("what", "failed")))
    if "report" not in record or "theta" not in record:
        raise InputError(f"sent no report, but {sorted(record)}")
    told: dict[str, Any] = dict(record["report"])
    for name in ("client", "round"):
        if told.get(name) != getattr(sent, name):
            raise InputError(f"answered for {name} {told.get(name)}, was asked for {name} {getattr(sent, name)}")
    theta = tree(record["theta"], sent.theta, "theta")
    own = None if jacobian is None else tree(record.get("jacobian"), jacobian, "the Jacobian")
    if odd := [name for name, value in told.items() if not isinstance(value, (int, float))]:
        raise InputError(f"sent {odd} that are no numbers")
    samples = told.get("samples", -1)
    if not isinstance(samples, int) or samples < 0:
        raise InputError(f"states a sample count of {samples!r}")
    state = Remote(jnp.int32(sent.round), sent.shared, () if own is None else own)
    work = Work(
        theta,
        state,
        float(told.get("loss", math.nan)),
        math.nan,
        float(told.get("kept", math.nan)),
        samples,
        own,
        float(told.get("jacobian_error", math.nan)),
        bool(told.get("sound", 0)),
    )
    return work, bool(told.get("lost", 0))


def arrays(values: Any) -> ArrayRecord:
    """The leaves of a pytree, in order."""
    return ArrayRecord({str(i): Array(np.asarray(leaf)) for i, leaf in enumerate(jax.tree.leaves(values))})


def tree(record: Any, like: Any, name: str) -> Any:
    """A pytree like ``like`` from its leaves; refuses other numbers of leaves, shapes and kinds of numbers."""
    leaves, structure = jax.tree.flatten(like)
    if not isinstance(record, ArrayRecord) or sorted(record) != sorted(str(i) for i in range(len(leaves))):
        got = sorted(record) if isinstance(record, ArrayRecord) else type(record).__name__
        raise InputError(f"{name} must have {len(leaves)} arrays, got {got}")
    found = []
    for i, leaf in enumerate(leaves):
        try:
            array = record[str(i)].numpy()
        except Exception as error:
            raise InputError(f"array {i} of {name} cannot be read: {error}") from error
        if array.shape != np.shape(leaf) or array.dtype != np.asarray(leaf).dtype:
            expected = f"{np.asarray(leaf).dtype} of shape {np.shape(leaf)}"
            raise InputError(f"array {i} of {name} must be {expected}, got {array.dtype} of shape {array.shape}")
        found.append(jnp.asarray(array))
    return jax.tree.unflatten(structure, found)


def size(record: RecordDict) -> int:
    """Bytes of the arrays and numbers in a message."""
    return sum(part.count_bytes() for part in record.values())


def shape_of_jacobian(shared: Any) -> Any:
    return shared.jacobian if isinstance(shared, Shared) else None
