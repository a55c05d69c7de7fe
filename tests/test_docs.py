"""The documentation's figures come from stored results, every example runs, and the reference is whole."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import profl
from profl.cases import CASES
from profl.cli import demo_runs as demo
from profl.methods import ALGORITHMS
from profl.parts.filters import FILTERS
from profl.parts.jacobian.estimators import ESTIMATORS
from profl.server.attacks import ATTACKS
from profl.server.rules import RULES
from profl_papers.reproduce import ITEMS
from tests.made import made_adult
from tests.problems import QUICK
from tests.test_parts import LAYERS

ROOT = Path(__file__).parent.parent
STORED = ROOT / "docs" / "results.json"
pytestmark = pytest.mark.skipif(not STORED.is_file(), reason="needs the repository: docs/ is not in the package")


@pytest.fixture(scope="module")
def stored():
    return json.loads(STORED.read_text())


@pytest.fixture(scope="module")
def hooks():
    sys.path.insert(0, str(ROOT / "docs"))  # where MkDocs finds what stands beside it
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(ROOT / "docs"))


def test_the_stored_results_are_whole(stored):
    """Those of the paper, and of the field's papers as many as are stored, in their order."""
    names = [result["item"] for result in stored["items"]]
    assert names == list(ITEMS)
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


def test_every_paper_has_its_part_of_the_page(stored, hooks, monkeypatch, tmp_path):
    """Counts by verdict, what does not hold, what was found and changed; the paper itself is not among the field's."""
    other = {"work": "other2020", "citation": "Other (2020)", "finding": "Found so.", "changed": "A tolerance."}
    claim = {"expected": "at most 1", "measured": 2.0, "threshold": 1.0, "paper": "", "far": ""}
    claims = [{"claim": "one", "holds": True} | claim, {"claim": "two", "holds": False} | claim]
    items = [*stored["items"], stored["items"][0] | other | {"item": "other2020", "claims": claims}]
    monkeypatch.setattr(hooks, "DATA", tmp_path / "results.json")
    hooks.DATA.write_text(json.dumps(stored | {"items": items}))
    papers, field = (hooks.on_page_markdown(f"<!-- results: {name} -->", None) for name in ("papers", "field"))
    assert papers.splitlines()[-1] == "| other2020 | Other (2020) | 1 of 2 |  | 1 |"
    assert "| profl2024 |" not in papers
    for text in ("### Other (2020)", "Found so.", "seen: A tolerance.", "These do not hold:\n\n- two: 2, expected at"):
        assert text in field
    assert "other2020" not in hooks.on_page_markdown("<!-- results: summary -->", None)
    assert "| profl2024 |" in hooks.readme("<!-- reproduced --><!-- /reproduced -->", items)


def test_stored_lines_are_thin_and_keep_their_ends(hooks):
    line = {"label": "PFL"} | {name: list(range(500)) for name in ("x", "mean", "low", "high")}
    kept = hooks.thinned({"title": "made", "lines": [line]})["lines"][0]
    assert len(kept["x"]) == hooks.POINTS
    assert (kept["x"][0], kept["mean"][-1]) == (0, 499)
    short = {"title": "made", "lines": [line | {name: [1.0, 2.0] for name in ("x", "mean", "low", "high")}]}
    assert hooks.thinned(short) == short


def test_the_readme_shows_the_demo(hooks):
    """``docs/demo.json`` is what ``profl demo --json`` wrote, with the settings of today."""
    runs = json.loads((ROOT / "docs" / "demo.json").read_text())["runs"]
    text = (ROOT / "README.md").read_text()
    assert hooks.figures(text, runs) == text
    made = {(run["algorithm"], run["settings"]["rounds"], run["settings"]["local_steps"]) for run in runs}
    assert made == {(trial.method.name, trial.rounds, trial.steps) for trial in demo.trials()}
    assert {tuple(run["seeds"]) for run in runs} == {tuple(demo.SEEDS)}
    rates = {(run["algorithm"], run["settings"].get("learning_rate")) for run in runs}
    assert rates == {(trial.method.name, trial.method.settings().get("learning_rate")) for trial in demo.trials()}


def test_every_page_asks_for_something_that_exists(hooks):
    for path in (ROOT / "docs").glob("*.md"):
        filled = hooks.on_page_markdown(path.read_text(), None)
        assert "<!-- results" not in filled
        assert not re.search(r"<!-- (guide|changelog|commands|api|source|excerpt)", filled), path.name


def test_the_page_of_parts_shows_the_chain_and_names_every_part(hooks):
    text = (ROOT / "docs" / "parts.md").read_text()
    shown = hooks.on_page_markdown(text, None)
    assert "```python\nreturn chain(\n    None if filter ==" in shown
    assert 'name="profl",\n)\n```' in shown
    assert (ROOT / "examples" / "own_part.py").read_text() in shown
    public = (vars(profl.parts)[name] for name in profl.parts.__all__)
    classes = {thing.__name__ for thing in public if isinstance(thing, type) and issubclass(thing, profl.parts.Part)}
    assert set(re.findall(r"^\| `(\w+)` \| [\d, -]+ \|", text, re.MULTILINE)) == classes - {"Part"}


def test_the_guide_names_every_layer_and_only_files_that_exist():
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    table = guide[guide.index("| layer | holds |") : guide.index("Two packages stand beside")]
    rows = re.findall(r"^\| (`[\w` ]+`) \|", table, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == set().union(*LAYERS) - {"__main__"}
    files = re.findall(r"`((?:src|papers|benchmarks|examples|tests|docs)/[\w/.]+)`", guide)
    files += [f"src/profl/run/{name}" for name in re.findall(r"^\| `(\w+(?:\.py|/))` \|", guide, re.MULTILINE)]
    assert len(files) > 20
    assert not [name for name in files if not (ROOT / name).exists()]


# -- every example runs

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"<!-- source: ([\w/.]+) -->")
DONE: dict[tuple[str, str], dict] = {}  # an example that stands on two pages is run once
OPTIONAL = ("flax", "equinox", "sklearn", "torch")  # examples with these run where they are installed
REGISTRIES = (ALGORITHMS, ATTACKS, CASES, ESTIMATORS, FILTERS, RULES)


def examples(path):
    """Every block of Python on a page, as far down in its own source as it stands on the page; files it shows too."""
    text = FILE.sub(lambda found: f"```python\n{(ROOT / found[1]).read_text()}```", path.read_text())
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
@pytest.mark.parametrize(
    "page",
    [path if path.name == "README.md" else pytest.param(path, marks=pytest.mark.pages) for path in WITH_EXAMPLES],
    indirect=True,
    ids=lambda path: path.name,
)
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


# -- the reference

ENTRY = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)
API = (ROOT / "docs" / "api.md").read_text() if STORED.is_file() else ""


def public_names():
    """What a person may write after ``import profl``."""
    yield from (f"profl.{name}" for name in profl.__all__)
    yield from (f"profl.cases.{name}" for name in CASES)
    for module in (profl.parts, profl.server, profl.worlds, profl.callbacks):
        names = (name for name in module.__all__ if not isinstance(vars(module)[name], ModuleType))
        yield from (f"{module.__name__}.{name}" for name in names)


def test_the_api_page_has_every_public_name_once():
    listed = ENTRY.findall(API)
    assert len(listed) == len(set(listed))
    assert set(public_names()) <= set(listed)


def test_every_public_name_has_an_example(hooks):
    """In its docstring, or on the page."""
    blocks = "\n".join(body for _, body in re.findall(r"^```(python|)\n(.*?)^```", API, re.DOTALL | re.MULTILINE))
    shown = {found.rstrip(".") for found in re.findall(r"profl\.[\w.]+", blocks)}
    mentioned = set(re.findall(r"`(profl\.callbacks\.\w+)\(", API))  # what needs a server of its own
    for name in public_names():
        documented = ">>>" in (hooks.reference.find(name).__doc__ or "")
        assert documented or name in mentioned or any(found.startswith(name) for found in shown), name


def test_an_entry_has_signature_text_and_examples(hooks):
    made = hooks.reference.entry("profl.profl")
    assert made.startswith(
        "### profl.profl {: #profl.profl }\n\n```python\nprofl.profl(\n    learning_rate: float | str"
    )
    assert '- `filter`: which samples to trust: "robust"' in made  # the method, not the module of the same name
    assert '```pycon\n>>> profl(filter="rubust")\nTraceback' in made
    assert "\n>>>" not in hooks.reference.prose("A.\n\n>>> 1 + 1\n2").replace("```pycon\n>>>", "")


def test_what_the_generators_say_of_themselves(hooks):
    for module in (hooks.reference, hooks.tutorial):
        tried = doctest.testmod(module)
        assert tried.attempted > 0
        assert tried.failed == 0


def test_the_command_page_has_every_command_and_option(hooks):
    text = hooks.reference.commands()
    for command in ("demo", "run", "compare", "reproduce", "check", "data-get", "flower-submit"):
        assert f"{{: #profl-{command} }}" in text
    assert "| `--local-steps`, `-R` | `5` | Local steps per round; each deploys once. |" in text
    assert "| `CASE` | required | Case study: pricing," in text


# -- the tutorial

TUTORIAL = ROOT / "docs" / "tutorial.ipynb"


def test_the_tutorial_is_a_valid_notebook_without_output():
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(TUTORIAL, as_version=4)
    nbformat.validate(notebook)
    assert len([cell for cell in notebook.cells if re.match(r"## \d+\. ", cell.source)]) == 10
    assert not any(cell.get("outputs") for cell in notebook.cells)  # the page has them, made anew


@pytest.mark.pages
@pytest.mark.parametrize("rounds", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_the_tutorial_runs(hooks, rounds):
    """In full it ends where it says; seeds 0-9 gave 0.5016 to 0.5022, where runs begin at 1.43."""
    pytest.importorskip("sklearn")
    told, space = hooks.tutorial.cells(TUTORIAL), {"__name__": "__main__"}
    short = f"ROUNDS, SAMPLES = {rounds}"
    told = [cell._replace(source=cell.source.replace("ROUNDS, SAMPLES = 30", short)) for cell in told]
    left = list(hooks.tutorial.run(told, space))
    assert space["run"].rounds[-1] == rounds
    assert sum(len(output.pictures) for output in left) == 1
    if rounds == 30:
        assert space["performative_risk"](space["ended"]) < 0.505
