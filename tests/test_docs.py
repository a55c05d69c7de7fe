"""The documentation's figures come from stored results, the README shows what they say, and every example runs."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import profl
from profl.algorithms import ALGORITHMS
from profl.cases import CASES
from profl.client.filters import FILTERS
from profl.client.jacobian import ESTIMATORS
from profl.experiments.paper import ITEMS
from profl.server.attacks import ATTACKS
from profl.server.rules import RULES
from tests.made import made_adult
from tests.problems import QUICK

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


# -- every example runs

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
DONE: dict[tuple[str, str], dict] = {}  # an example that stands on two pages is run once
OPTIONAL = ("flax", "equinox")  # examples with these run where they are installed
REGISTRIES = (ALGORITHMS, ATTACKS, CASES, ESTIMATORS, FILTERS, RULES)


def examples(path):
    """Every block of Python on a page, as far down in its own source as it stands on the page."""
    text = path.read_text()
    return ["\n" * text.count("\n", 0, found.start(1)) + found[1] for found in PYTHON.finditer(text)]


@pytest.fixture
def page(request, monkeypatch, tmp_path):
    """A module for a page's examples, which may write files and register parts: both are gone afterwards."""
    module = ModuleType(f"page_{request.param.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # a dataclass asks for the module it is in
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("profl.cases.real.load", lambda name, given=None: made_adult())  # no network
    before = [dict(registry) for registry in REGISTRIES]
    yield request.param, module
    for registry, kept in zip(REGISTRIES, before, strict=True):
        registry.clear()
        registry.update(kept)


# The short form takes the parts that are quick to compile where an example names none, and few rounds; but for those
# that hold their runs to something, and for what a reader of the README types first.
LIGHT = {"pofl": {"jacobian": QUICK}, "profl": {"jacobian": QUICK, "filter": "paper"}}
AS_IT_IS = re.compile(r"^assert|profl\.profl\(learning_rate=0\.01\)", re.MULTILINE)
WITH_EXAMPLES = [path for path in PAGES if path.is_file() and examples(path)]


def lighter(make, parts):
    return lambda *given, **named: make(*given, **{**parts, **named})


def shorter(simulate):
    return lambda *given, rounds, **named: simulate(*given, rounds=min(rounds, 12), **named)


@pytest.mark.parametrize("form", ["short", pytest.param("full", marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", WITH_EXAMPLES, indirect=True, ids=lambda path: path.name)
def test_every_example_runs(page, form, monkeypatch):
    """The blocks of a page, one after the other in one module, as a reader would type them."""
    path, module = page
    if path.name == "flower.md":
        pytest.importorskip("flwr")
    for source in examples(path):
        if any(name in source and importlib.util.find_spec(name) is None for name in OPTIONAL):
            continue
        if (done := (source.strip(), form)) not in DONE:
            with monkeypatch.context() as patch:
                if form == "short" and not AS_IT_IS.search(source):
                    for name, parts in LIGHT.items():
                        patch.setattr(profl, name, lighter(getattr(profl, name), parts))
                    patch.setattr(profl, "simulate", shorter(profl.simulate))
                exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
            DONE[done] = dict(module.__dict__)
        module.__dict__.update(DONE[done])


def test_examples_in_other_languages_are_not_taken_for_python():
    """A block without a language is a shell's: none of them imports anything."""
    for path in PAGES:
        for language, body in re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE):
            assert language in ("", "python", "toml"), f"{path.name}: {language}"
            assert language == "python" or not re.search(r"^(import|from) ", body, re.MULTILINE), path.name
