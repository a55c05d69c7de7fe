"""Damaged files: each is read as it was, or refused in one line."""

from __future__ import annotations

import pytest

import profl
from tests import mutations


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "original"
    mutations.make(folder)
    return folder


@pytest.mark.faults
@pytest.mark.parametrize("count", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_damaged_files_are_read_as_they_were_or_refused_in_one_line(count, original, tmp_path):
    expected = mutations.content(original)
    assert not any(isinstance(value, profl.InputError) for value in expected.values())
    found = [mutations.check(number, original, tmp_path / "copy", expected) for number in range(count)]
    assert not list(filter(None, found)), "\n".join(filter(None, found))


def test_most_of_them_are_refused(original, tmp_path):
    """Else nothing would be damaged."""
    refused = 0
    for number in range(30):
        mutations.check(number, original, tmp_path / "copy", mutations.content(original))
        found = mutations.content(tmp_path / "copy")
        refused += any(isinstance(value, profl.InputError) for value in found.values())
    assert refused >= 20
