"""The documentation's figures come from stored results, and the README shows what they say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from profl.experiments.paper import ITEMS

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs" / "results.json"
pytestmark = pytest.mark.skipif(not STORED.is_file(), reason="needs the repository: docs/ is not in the package")


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text())


@pytest.fixture(scope="module")
def hooks():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stored_results_are_whole(stored):
    assert [result["item"] for result in stored["items"]] == list(ITEMS)
    for result in stored["items"]:
        assert result["seed_list"] == list(range(10)), result["item"]
        assert not result["quick"]


def test_the_stored_results_were_made_with_the_settings_of_today(stored):
    for result in stored["items"]:
        item = ITEMS[result["item"]]
        assert result["settings"] == json.loads(json.dumps(item.settings)), item.name


def test_the_readme_shows_them(stored, hooks):
    text = (ROOT / "README.md").read_text()
    assert hooks.readme(text, stored["items"]) == text


def test_every_page_asks_for_something_that_exists(hooks):
    for path in (ROOT / "docs").glob("*.md"):
        filled = hooks.on_page_markdown(path.read_text(), None)
        assert "<!-- results" not in filled
        assert "<!-- guide" not in filled
