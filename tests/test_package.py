"""What is published says the same everywhere: versions, files, links."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import profl
from profl import cli

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / ".github").is_dir(), reason="needs the repository")
HAND_WRITTEN = 880  # words of the README; its two tables made from results come on top, 1,200 together


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_stated_once_and_cited(project):
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/profl/__init__.py"
    cited = dict(re.findall(r"^(version|date-released): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert cited["version"] == profl.__version__
    releases = re.findall(r"^## \[(.+?)\](?: - (.+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == ("Unreleased", "")
    assert releases[1] == (profl.__version__, cited["date-released"])


def test_every_python_that_is_named_is_tested(project):
    named = re.findall(r"Python :: (3\.\d+)", " ".join(project["project"]["classifiers"]))
    assert named[0] == project["project"]["requires-python"].removeprefix(">=")
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', re.search(r"python: \[(.+)\]", workflow)[1]) == named


def test_workflows_and_hooks_ask_for_targets_that_exist():
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = set()
    for path in [ROOT / ".ci" / "run", *(ROOT / ".github" / "workflows").glob("*.yml"), ROOT / "README.md"]:
        found = re.findall(r"(?:^|run: |`)make ([a-z-]+)", path.read_text(), re.MULTILINE)
        assert found, f"{path} asks for nothing"
        asked |= set(found)
    assert asked <= targets, asked - targets


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    own = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", text, flags=re.DOTALL)
    assert len(own.split()) <= HAND_WRITTEN
    assert text.index("pip install") < text.index("make demo") < text.index("make test")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_what_a_page_points_to_is_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / page).read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (ROOT / target).exists(), f"{page} points to {target}"


@pytest.mark.parametrize("text", ["plots need matplotlib: pip install 'profl[report]'", "no module named 'profl.gone'"])
def test_a_missing_extra_is_one_line_and_any_other_import_a_traceback(text, monkeypatch, capsys):
    def fails(**_: Any) -> None:
        raise ImportError(text)

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(cli, "keep_compiled", lambda: None)
    with pytest.raises(SystemExit if "pip" in text else ImportError) as ended:
        cli.main()
    assert capsys.readouterr().err == (f"error: {text}\n" if "pip" in text else "")
    assert "pip" not in text or ended.value.code == 2
