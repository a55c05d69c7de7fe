"""What the documentation builds from ``results.json``: tables, pictures, the report; and the README's summary.

MkDocs calls the ``on_...`` functions. ``python docs/hooks.py DIR`` puts the results that ``profl reproduce --out DIR``
made into ``docs/results.json`` and brings the README up to date; ``python docs/hooks.py FILE.json`` does so with the
figures that ``profl demo --json FILE.json`` wrote, which are kept in ``docs/demo.json``.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import reference
import tutorial

from profl.cli.demo_runs import HOSTILE, JUNK, SAMPLES
from profl.results.cells import claims_summary
from profl_papers import markdown
from profl_papers.panels import plot_panels
from profl_papers.profl2024.printed import WORK
from profl_papers.report import write_report

DOCS = Path(__file__).parent
ROOT = DOCS.parent
DATA = DOCS / "results.json"
PAPER = "profl2024"
"""The paper itself; all other works are the field's."""
POINTS = 60
"""Of a stored line, which a figure on a page cannot show more of."""
DEMO = DOCS / "demo.json"


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
    """Fill in what a page asks for: ``<!-- results: NAME -->``, files, the guide, the changelog, names and commands."""
    stored = json.loads(DATA.read_text(encoding="utf-8"))
    own = [result for result in stored["items"] if result["work"] == PAPER]
    printed = [result for result in stored["items"] if result["work"] == WORK]
    others = [result for result in stored["items"] if result["work"] not in (PAPER, WORK)]
    makers = {
        "both_forms": lambda: markdown.both_forms([*own, *printed]),
        "printed": lambda: items(printed),
        "summary": lambda: markdown.summary(own),
        "claims": lambda: markdown.claims(own),
        "items": lambda: items(own),
        "papers": lambda: markdown.papers(others),
        "field": lambda: markdown.field(others),
        "bound": lambda: markdown.rows(stored["theory"]["rows"]),
        "constants": lambda: markdown.rows([stored["theory"]["constants"]]),
    }
    text = re.sub(r"<!-- results: (\w+) -->", lambda found: makers[found[1]](), text)
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").removeprefix("# Contributing\n")
    text = text.replace("<!-- guide -->", guide.replace("(CHANGELOG.md)", "(changelog.md)").replace("(docs/", "("))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").removeprefix("# Changelog\n")
    changes = changes.replace("(CONTRIBUTING.md#", "(extend.md#").replace("(docs/", "(")
    text = reference.fill(sources(text.replace("<!-- changelog -->", changes)))
    text = re.sub(r"\(\.\./examples/(\w+)/README\.md\)", r"(examples/\1.md)", text)
    return formulas(text.replace("(../CONTRIBUTING.md)", "(extend.md)"))


def sources(text: str) -> str:
    """A page with files and excerpts of files shown as blocks of Python.

    ``<!-- source: PATH -->`` is a whole file; ``<!-- excerpt: PATH: FIRST -->`` is the statement that begins with the
    line ``FIRST``, to the line that closes its bracket. Paths start at the root of the repository.
    """

    def whole(found: re.Match[str]) -> str:
        return f"```python\n{(ROOT / found[1]).read_text(encoding='utf-8')}```"

    def excerpt(found: re.Match[str]) -> str:
        lines = (ROOT / found[1]).read_text(encoding="utf-8").splitlines()
        first = next(i for i, line in enumerate(lines) if line.strip() == found[2])
        last = next(i for i in range(first + 1, len(lines)) if lines[i].strip() == ")")
        return "```python\n" + textwrap.dedent("\n".join(lines[first : last + 1])) + "\n```"

    text = re.sub(r"<!-- source: ([\w/.]+) -->", whole, text)
    return re.sub(r"<!-- excerpt: ([\w/.]+): (.+?) -->", excerpt, text)


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
    """The README with its table of papers made again."""
    ours = [result for result in results if result["work"] != WORK]
    paper, printed = (
        claims_summary(claim for result in results if result["work"] == work for claim in result["claims"])
        for work in (PAPER, WORK)
    )
    told = claims_summary(claim for result in ours for claim in result["claims"])
    told += (
        f". For the ProFL paper, {paper}, with\nprofl's parts; {printed} with its algorithm as printed (`--literal`)"
    )
    block = f"<!-- reproduced -->\n{told}.\n\n{markdown.papers(ours)}\n<!-- /reproduced -->"
    return re.sub(r"<!-- reproduced -->.*<!-- /reproduced -->", lambda _: block, text, flags=re.DOTALL)


def thinned(panel: dict[str, Any]) -> dict[str, Any]:
    """A panel whose lines have at most ``POINTS`` points, the first and the last among them."""
    lines = []
    for line in panel["lines"]:
        last = len(line["x"]) - 1
        kept = sorted({round(i * last / (POINTS - 1)) for i in range(POINTS)})
        lines.append(line | {name: [line[name][i] for i in kept] for name in ("x", "mean", "low", "high")})
    return panel | {"lines": lines}


def figures(text: str, runs: list[dict[str, Any]]) -> str:
    """The README with the demo's figures made again."""
    seeds = [str(seed) for seed in runs[0]["seeds"]]
    said = (
        f"Risk above the optimum over the last 10 % of the rounds, mean ± standard deviation over seeds {seeds[0]}-"
        f"{seeds[-1]}, and in brackets how much of\nthe gap between the stable point and the optimum is closed; clean, "
        f"and with {JUNK:.0%} junk samples and {HOSTILE:.0%} hostile\nclients ({SAMPLES} samples per client and "
        f"deployment), as `profl demo --json demo.json` writes it:\n\n"
    )
    cases = list(dict.fromkeys(run["case"] for run in runs))
    names = [case.split(" with ")[0] + (", in trouble" if " with " in case else "") for case in cases]
    rows = [["method", "deployments", *names], ["---"] * (2 + len(cases))]
    for method in ("pfl", "pg", "pofl", "profl", "prm"):
        found = {run["case"]: run for run in runs if run["algorithm"] == method}
        for count in dict.fromkeys(_deployments(run) for run in found.values()):
            rows.append([method, f"{count}", *(_closed(found.get(case)) for case in cases)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- ", "|---").replace("--- |", "---|")
    block = f"<!-- figures -->\n{said}{table}\n<!-- /figures -->"
    return re.sub(r"<!-- figures -->.*<!-- /figures -->", lambda _: block, text, flags=re.DOTALL)


def _deployments(run: dict[str, Any]) -> int:
    return run["settings"]["rounds"] * run["settings"]["local_steps"]


def _closed(run: dict[str, Any] | None) -> str:
    if run is None:
        return ""
    tail = run["tail_excess"]
    closed = 1 - tail["mean"] / (run["stable_risk"] - run["optimum_risk"])
    return f"{tail['mean']:.3g} ± {tail['sd']:.2g} ({round(100 * closed, 1) + 0.0:.1f} %)"


def keep_demo(path: Path) -> None:
    """The demo's figures into ``demo.json`` and the README."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    DEMO.write_text(json.dumps(stored, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    page = ROOT / "README.md"
    page.write_text(figures(page.read_text(encoding="utf-8"), stored["runs"]), encoding="utf-8")


def collect(directory: Path) -> None:
    """Results of a directory into ``results.json``, the landscape's picture, and the README."""
    from profl_papers.bounds import beside_the_bound
    from profl_papers.pages import landscapes
    from profl_papers.reproduce import read_all

    found = [result | {"panels": [thinned(panel) for panel in result["panels"]]} for result in read_all(directory)]
    stored = {"items": found, "landscapes": landscapes(directory), "theory": beside_the_bound(found)}
    DATA.write_text(json.dumps(stored, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
    plot_panels(stored["landscapes"], [DOCS / "landscape.png"])
    path = ROOT / "README.md"
    path.write_text(readme(path.read_text(encoding="utf-8"), stored["items"]), encoding="utf-8")


if __name__ == "__main__":
    given = Path(sys.argv[1])
    (keep_demo if given.suffix == ".json" else collect)(given)
