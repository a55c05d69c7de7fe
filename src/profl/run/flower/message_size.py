"""How much one request of a node may carry: the server's side of a run states it, the SuperLink holds nodes to it.

A SuperLink passes on what it does not understand, so only the run knows how large a report is. Whoever starts the
SuperLink names a file in the environment; every run that begins raises the number in it to what its reports need. A
request carries one object of a report, and Flower cuts arrays into chunks, so that no request is larger than a chunk.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE

from profl.run.flower import wire
from profl.run.flower.federation import Federation
from profl.run.flower.rounds import absent_report
from profl.storage.atomic import atomic

VARIABLE = "PROFL_MESSAGE_SIZE"
"""The environment variable with which whoever runs the SuperLink names the file."""
ALLOWANCE = 2**18  # bytes of a request beside a report's arrays: names, ids of objects, fingerprints, an error's words
MAX_DIGITS = 16  # in the file


def report_bytes(federation: Federation) -> int:
    """The bytes of the arrays of a client's report."""
    leaves = jax.tree.leaves(absent_report(federation).reports)
    return sum(leaf.nbytes + wire.HEADER for leaf in leaves)


def request_bytes(federation: Federation) -> int:
    """The bytes that the largest honest request of a node may have."""
    return ALLOWANCE + min(report_bytes(federation), FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)


def state_request_bytes(federation: Federation) -> None:
    """Raise the number in the SuperLink's file to what this run needs, if the environment names one."""
    path = os.environ.get(VARIABLE)
    if path and request_bytes(federation) > stated_request_bytes(Path(path)):
        with atomic(Path(path), private=True) as temporary:
            temporary.write_text(f"{request_bytes(federation)}\n")


def stated_request_bytes(path: Path) -> int:
    """The number in the file; that of a run without arrays if there is no such file."""
    try:
        with path.open(encoding="ascii") as file:
            return max(ALLOWANCE, int(file.read(MAX_DIGITS)))
    except (OSError, ValueError):
        return ALLOWANCE
