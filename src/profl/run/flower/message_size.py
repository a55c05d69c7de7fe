"""How much a node may send: the server's side of a run states it, the SuperLink holds nodes to it.

A SuperLink passes on what it does not understand, so only the run knows how large a report is. Whoever starts the
SuperLink names a file in the environment; every run that begins raises the number in it to what its reports need. A
request carries one object of a report, and Flower cuts arrays into chunks, so that no request is larger than a chunk.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as CHUNK_BYTES

from profl.run.flower import wire
from profl.run.flower.federation import Federation
from profl.run.flower.rounds import absent_report
from profl.storage.atomic import atomic

VARIABLE = "PROFL_MESSAGE_SIZE"
"""The environment variable with which whoever runs the SuperLink names the file."""
ALLOWANCE = 2**18  # bytes beside a report's arrays: names, ids of objects, fingerprints, an error's words
MAX_DIGITS = 16  # in the file


def message_bytes(federation: Federation) -> int:
    """The bytes that a client's honest message may have, with all its objects."""
    leaves = jax.tree.leaves(absent_report(federation).reports)
    return ALLOWANCE + sum(leaf.nbytes + wire.HEADER for leaf in leaves)


def message_objects(federation: Federation) -> int:
    """The objects that a client's honest message may have: itself, its records, their arrays, and chunks of those."""
    reports = absent_report(federation).reports
    chunks = [1 + -(-leaf.nbytes // CHUNK_BYTES) for leaf in jax.tree.leaves(reports)]
    return 4 + len(reports) + sum(chunk + 1 for chunk in chunks)


def largest_request(message: int) -> int:
    """The bytes of the largest honest request where a message has ``message`` bytes."""
    return min(message, ALLOWANCE + CHUNK_BYTES)


def state_message_bytes(federation: Federation) -> None:
    """Raise the number in the SuperLink's file to what this run needs, if the environment names one."""
    path = os.environ.get(VARIABLE)
    if path and message_bytes(federation) > stated_message_bytes(Path(path)):
        with atomic(Path(path), private=True) as temporary:
            temporary.write_text(f"{message_bytes(federation)}\n")


def stated_message_bytes(path: Path) -> int:
    """The number in the file; that of a report without arrays if there is no such file."""
    try:
        with path.open(encoding="ascii") as file:
            return max(ALLOWANCE, int(file.read(MAX_DIGITS)))
    except (OSError, ValueError):
        return ALLOWANCE
