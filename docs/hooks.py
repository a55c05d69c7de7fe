"""What the documentation builds from ``results.json``: tables, pictures, the report; and the README's summary.

MkDocs calls the ``on_...`` functions. ``python docs/hooks.py DIR`` puts the results that ``profl reproduce --out DIR``
made into ``docs/results.json`` and brings the README up to date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import reference
import tutorial

from profl.results import markdown
from profl.results.plots import plot_panels
from profl.results.report import write_report

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DATA = DOCS / "results.json"


def on_pre_build(config: Any) -> None:
    """Pictures and the report, where they are older than the results."""
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    report = DOCS / "report.html"
    if report.is_file() and report.stat().st_mtime >= DATA.stat().st_mtime:
        return
    for result in stored["items"]:
        plot_panels(result["panels"], [DOCS / "figures" / f"{result['item']}.png"])
    write_report(stored["items"], report, stored["landscapes"])


def on_files(files: Any, config: Any) -> Any:
    """Pages made on the way: the tutorial, with what its cells print and draw today, and the examples' own."""
    from mkdocs.structure.files import File

    text = tutorial.page(DOCS / "tutorial.ipynb", DOCS / "figures")
    files.append(File.generated(config, "tutorial.md", content=text))
    for path in sorted((DOCS / "figures").glob("tutorial-*.png")):
        if files.get_file_from_path(f"figures/{path.name}") is None:
            files.append(File.generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    for path in sorted((ROOT / "examples").glob("*/README.md")):
        told = path.read_text(encoding="utf-8").replace("(../../docs/", "(../")
        files.append(File.generated(config, f"examples/{path.parent.name}.md", content=told))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Fill in what a page asks for: ``<!-- results: NAME -->``, the guide, the changelog, names and commands."""
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    makers = {
        "summary": lambda: markdown.summary(stored["items"]),
        "claims": lambda: markdown.claims(stored["items"]),
        "items": lambda: items(stored["items"]),
        "bound": lambda: markdown.rows(stored["theory"]["rows"]),
        "constants": lambda: markdown.rows([stored["theory"]["constants"]]),
    }
    text = re.sub(r"<!-- results: (\w+) -->", lambda found: makers[found[1]](), text)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").removeprefix("# Contributing\n")
    text = text.replace("<!-- guide -->", guide.replace("(CHANGELOG.md)", "(changelog.md)").replace("(docs/", "("))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").removeprefix("# Changelog\n")
    changes = changes.replace("(CONTRIBUTING.md#", "(extend.md#")
    text = reference.fill(text.replace("<!-- changelog -->", changes))
    text = re.sub(r"\(\.\./examples/(\w+)/README\.md\)", r"(examples/\1.md)", text)
    return formulas(text.replace("(../CONTRIBUTING.md)", "(extend.md)"))


def formulas(text: str) -> str:
    """Every ``$$ TeX $$`` as MathML, which browsers show without a script; a long one scrolls by itself."""
    from latex2mathml.converter import convert

    def formula(found: re.Match[str]) -> str:
        return f'<span class="formula">{convert(found[1].strip(), display="block")}</span>'

    return re.sub(r"\$\$(.+?)\$\$", formula, text, flags=re.DOTALL)


def items(results: list[dict[str, Any]]) -> str:
    """Every item with its picture."""
    return "\n\n".join(
        f"### {result['item']}\n\n![{result['title']}](figures/{result['item']}.png)\n\n{markdown.item(result)}"
        for result in results
    )


def readme(text: str, results: list[dict[str, Any]]) -> str:
    """The README with its summary made again."""
    block = f"<!-- reproduced -->\n{markdown.summary(results)}\n<!-- /reproduced -->"
    return re.sub(r"<!-- reproduced -->.*<!-- /reproduced -->", lambda _: block, text, flags=re.DOTALL)


def collect(directory: Path) -> None:
    """Results of a directory into ``results.json``, the landscape's picture, and the README."""
    from profl.experiments.bounds import beside_the_bound
    from profl.experiments.pages import landscapes
    from profl.experiments.reproduce import read_all

    found = read_all(directory)
    stored = {"items": found, "landscapes": landscapes(directory), "theory": beside_the_bound(found)}
    DATA.write_text(json.dumps(stored, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    plot_panels(stored["landscapes"], [DOCS / "landscape.png"])
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8"), stored["items"]), encoding="utf-8")


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
