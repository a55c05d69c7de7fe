"""The messages of a federation as Flower records; whatever arrives is checked before it is used.

server to client   theta, the client's mail, and: which round and turn, which client, which message to go on from
client to server   what the method reports, and a few numbers by name. Never samples.

Any pytree travels as its leaves in order; the other side knows the structure and refuses other shapes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from profl.checks import InputError, words
from profl.run.round import Work
from profl.typing import Theta

MAX_REPORTS = 2**31
ORDER_FIELDS = ("client", "round", "turn", "number", "since", "base", "token", "digest", "nonce")
HEADER = 1024  # bytes that an array may take beside its numbers


class RemoteState(NamedTuple):
    """What the server stores about a client that keeps its own state. Checkpoints store the names of the fields."""

    since: Any  # () int32: the last message that was accepted, 0 for none; the client goes on from its state after it
    mailed: Any = ()  # (theta, mail) that it has not received yet, if the method has mail or exchanges
    report: Any = ()  # its last report, without the model


class Order(NamedTuple):
    """What a client has to do in one turn."""

    theta: Theta
    mailed: Any  # (theta, mail) as ``RemoteState`` has it
    client: int
    round: int  # counted from 1
    turn: int  # 0: deploy and report; later ones: report again
    number: int  # of the message, counted from 1 over the whole run
    since: int  # the message after which to go on, 0 for none
    base: int  # ... and that from which the round began
    token: str  # of the run, across restarts of the server
    digest: str  # of the fingerprint
    nonce: str = ""  # nobody else can guess what the message is called, so nobody else can answer it


def write_order(order: Order) -> RecordDict:
    """The order as a record."""
    fields: dict[str, Any] = {name: getattr(order, name) for name in ORDER_FIELDS}
    record = RecordDict({"theta": to_arrays(order.theta), "order": ConfigRecord(fields)})
    if jax.tree.leaves(order.mailed):
        record["mailed"] = to_arrays(order.mailed)
    return record


def read_order(record: RecordDict, theta: Theta, mailed: Any) -> Order:
    """The order in a message; ``theta`` and ``mailed`` give the shapes."""
    fields: dict[str, Any] = {name: record["order"][name] for name in ORDER_FIELDS}
    model = from_arrays(record["theta"], theta, "theta")
    received = from_arrays(record["mailed"], mailed, "the mail") if jax.tree.leaves(mailed) else ()
    return Order(model, received, **fields)


def write_report(work: Work, order: Order, lost: bool, reports: int | None = None) -> RecordDict:
    """The report as a record; ``reports`` counts those that have left this client, if that is accounted for."""
    numbers: dict[str, Any] = {
        "client": order.client,
        "number": order.number,
        "samples": int(work.samples),
        "regret": float(work.regret),
        "sound": int(work.finite),
        "lost": int(lost),
    }
    if reports is not None:
        numbers["reports"] = reports
    numbers |= {f"info {name}": float(value) for name, value in work.info.items()}
    numbers |= {f"figure {name}": float(value) for name, value in work.figures.items()}
    return RecordDict({"report": MetricRecord(numbers), **_entry_arrays(work.reports)})


def _entry_arrays(reports: dict[str, Any]) -> dict[str, ArrayRecord]:
    """The entries of a report as records, by name."""
    return {f"entry {name}": to_arrays(entry) for name, entry in reports.items()}


def read_report(record: RecordDict, order: Order, like: Work, most: int = 2**31 - 1) -> tuple[Work, bool]:
    """(the report, whether the client had lost its state); ``InputError`` says what is wrong with it.

    ``order`` is the order that it answers; ``like`` has the shapes and names of a report; ``most`` is the largest count
    of samples that can be believed. Whatever stands in the record, nothing but an ``InputError`` comes of it.
    """
    try:
        return _read_report(record, order, like, most)
    except InputError as error:
        raise InputError(words(error)) from error
    except Exception as error:
        raise InputError(words(f"sent what cannot be read ({type(error).__name__}: {error})")) from error


def _read_report(record: RecordDict, order: Order, like: Work, most: int) -> tuple[Work, bool]:
    if "error" in record:
        raise InputError(words(record["error"].get("what", "failed")))
    if not isinstance(record.get("report"), MetricRecord):
        raise InputError(f"sent no report, but {sorted(record)}")
    numbers_by_name: dict[str, Any] = dict(record["report"])
    for name in ("client", "number"):
        if numbers_by_name.get(name) != getattr(order, name):
            raise InputError(
                f"answered for {name} {numbers_by_name.get(name)}, was asked for {name} {getattr(order, name)}"
            )
    if not_numbers := [name for name, value in numbers_by_name.items() if not isinstance(value, (int, float))]:
        raise InputError(f"sent {not_numbers} that are no numbers")
    samples = numbers_by_name.get("samples", -1)
    if not isinstance(samples, int) or not 0 <= samples <= most:
        raise InputError(f"states a sample count of {samples!r}, not one from 0 to {most}")

    def number(name: str) -> Any:
        return jax.device_put(float(numbers_by_name.get(name, np.nan)))

    def numbers(kind: str, names: Any) -> dict[str, Any]:
        return {name: number(f"{kind} {name}") for name in names}

    reports = {name: from_arrays(record.get(f"entry {name}"), entry, name) for name, entry in like.reports.items()}
    work = like._replace(
        reports=reports,
        info=numbers("info", like.info),
        figures=numbers("figure", like.figures),
        regret=number("regret"),
        samples=jnp.int32(samples),
        answered=jax.device_put(True),
        finite=jax.device_put(bool(numbers_by_name.get("sound", 0))),
    )
    return work, bool(numbers_by_name.get("lost", 0))


def reports_made(record: RecordDict) -> int:
    """The number of reports that the client says it has sent; 0 if it states no plausible number."""
    count = record["report"].get("reports", 0)
    return count if isinstance(count, int) and 0 <= count < MAX_REPORTS else 0


def to_arrays(values: Any) -> ArrayRecord:
    """The leaves of a pytree as a record, in order."""
    return ArrayRecord({str(i): Array(np.asarray(leaf)) for i, leaf in enumerate(jax.tree.leaves(values))})


def from_arrays(record: Any, like: Any, name: str) -> Any:
    """A pytree like ``like`` from its leaves; refuses other numbers of leaves, shapes and types of numbers."""
    leaves, structure = jax.tree.flatten(like)
    if not isinstance(record, ArrayRecord) or sorted(record) != sorted(str(i) for i in range(len(leaves))):
        received = sorted(record) if isinstance(record, ArrayRecord) else type(record).__name__
        raise InputError(f"{name} must have {len(leaves)} arrays, got {received}")
    read = []
    for i, leaf in enumerate(leaves):
        if (size := len(record[str(i)].data)) > np.asarray(leaf).nbytes + HEADER:
            raise InputError(f"array {i} of {name} must have {np.asarray(leaf).nbytes} bytes, got {size}")
        try:
            array = record[str(i)].numpy()
        except Exception as error:
            raise InputError(f"array {i} of {name} cannot be read: {error}") from error
        if not isinstance(array, np.ndarray):
            raise InputError(f"array {i} of {name} is a {type(array).__name__}")
        if array.shape != np.shape(leaf) or array.dtype != np.asarray(leaf).dtype:
            expected = f"{np.asarray(leaf).dtype} of shape {np.shape(leaf)}"
            raise InputError(f"array {i} of {name} must be {expected}, got {array.dtype} of shape {array.shape}")
        read.append(jax.device_put(array))
    return jax.tree.unflatten(structure, read)


def byte_size(record: RecordDict) -> int:
    """Bytes of the arrays and numbers in a message."""
    return sum(part.count_bytes() for part in record.values())
