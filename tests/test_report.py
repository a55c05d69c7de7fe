"""The report: what the page holds, the pictures beside it, and the page as a browser draws it."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

import profl
from profl import checks
from profl.cli import app
from profl_papers import reproduce as work
from profl_papers.landscape import coordinate, landscape, risks
from profl_papers.report import page
from tests.test_reproduce import made_item

PHONE = {"width": 390, "height": 844}


def made_landscape() -> dict:
    at = [float(v) for v in np.linspace(0, 4, 21)]
    risk = [[(row - 0.5 * column - 1) ** 2 + 0.1 * column for column in at] for row in at]
    lines = [
        {"label": "PFL", "method": "pfl", "data": [3.0, 2.5], "model": [2.5, 2.1]},
        {"label": "ProFL", "method": "profl", "data": [3.0, 1.5], "model": [1.5, 1.2]},
    ]
    points = [{"label": "PO", "value": 1.0}, {"label": "PS", "value": 2.0}]
    axes = {"x": "deployed", "y": "model"}
    return {"kind": "landscape", "title": "made", **axes, "at": at, "risk": risk, "lines": lines, "points": points}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A directory with three results, one of which fails, and a landscape."""
    directory = tmp_path_factory.mktemp("paper")
    for name, measured in (("table1", 1.0), ("fig2a", 3.0), ("fig4d", 0.5)):
        work.write(directory / f"{name}.json", work.run(made_item(name, [], measured), range(3)))
    work.write(directory / "landscape.json", {"versions": work.versions(), "panels": [made_landscape()]})
    return directory


@pytest.fixture(scope="module")
def written(results):
    done = CliRunner().invoke(app, ["report", str(results)], catch_exceptions=False)
    assert done.exit_code == 0
    return results / "report.html"


def test_the_page_says_what_was_found_and_changed(results):
    found = work.read(results / "table1.json") | {"finding": "Found so.", "changed": "1 < 2 now."}
    assert "<p>Found so.</p>\n<p>Changed after results had been seen: 1 &lt; 2 now.</p>" in page([found])
    assert "Changed after" not in page([work.read(results / "fig2a.json")])


def test_reproduce_writes_the_page_too(results, tmp_path, monkeypatch):
    monkeypatch.setattr(work, "ITEMS", {"table1": made_item("table1", [])})
    shutil.copy(results / "landscape.json", tmp_path)
    CliRunner().invoke(app, ["reproduce", "table1", "--out", str(tmp_path)], catch_exceptions=False)
    assert "1 of 1 claims hold" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "figures" / "table1.svg").is_file()


def test_the_page_stands_alone(written):
    text = written.read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "@import" not in text
    assert "fetch(" not in text


def test_the_page_says_what_holds_and_what_does_not(written):
    text = written.read_text()
    assert "2 of 3 claims hold" in text
    assert "Does not hold:" in text
    for words in (work.ITEMS["fig2a"].title, "Figure 4d", "the paper&#x27;s row", "jax 0.", "made"):
        assert words in text, words


def test_text_from_results_cannot_become_markup(results):
    result = work.read(results / "table1.json")
    result["title"] = "</script><b>x</b>"
    result["panels"][0]["title"] = "</script><script>alert(1)</script>"
    text = page([result])
    assert "</script><b>" not in text
    assert "<script>alert" not in text


def test_pictures_are_drawn_once(written):
    figures = written.parent / "figures"
    names = sorted(path.name for path in figures.iterdir())
    assert names == sorted(
        f"{n}{s}" for n in ("table1", "fig2a", "fig4d", "landscape") for s in (".png", ".svg", ".pdf")
    )
    before = {path: path.stat().st_mtime_ns for path in figures.iterdir()}
    CliRunner().invoke(app, ["report", str(written.parent)], catch_exceptions=False)
    assert {path: path.stat().st_mtime_ns for path in figures.iterdir()} == before


@pytest.mark.parametrize("where", ["missing", "empty"])
def test_nothing_to_report(where, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(checks.InputError, match="profl reproduce --out"):
        CliRunner().invoke(app, ["report", str(tmp_path / where)], catch_exceptions=False)


def test_landscape_is_the_decoupled_risk():
    """Its diagonal is the risk; PO is lowest there; every column is lowest at PS in the column of PS."""
    case = profl.cases.housing(clients=3)
    found = landscape(case, [("PFL", profl.pfl(0.02))], rounds=5, samples=20)
    at, risk = np.array(found["at"]), np.array(found["risk"])
    middle = at.size // 2
    assert risk[middle, middle] == pytest.approx(case.risk(at[[middle]]), rel=1e-3)
    assert risk[3, 5] == pytest.approx(case.decoupled_risk(at[[5]], at[[3]]), rel=1e-3)
    best, stable = (point["value"] for point in found["points"])
    step = at[1] - at[0]
    assert abs(at[np.argmin(np.diagonal(risk))] - best) <= step
    assert abs(at[np.argmin(risk[:, np.argmin(abs(at - stable))])] - stable) <= 2 * step


def test_landscape_of_two_parameters_lies_on_the_line_through_both_points():
    case = profl.cases.pricing(clients=2, goods=2)
    axis = coordinate(case)
    length = np.linalg.norm(case.stable - case.optimum)
    np.testing.assert_allclose(axis.project(np.stack([case.optimum, case.stable])), [0, length], atol=1e-9)
    models = axis.models(np.array([0.0, length]))
    np.testing.assert_allclose(models, [case.optimum, case.stable], rtol=1e-9)
    assert risks(case, models)[1, 1] == pytest.approx(case.risk(case.stable), abs=1e-9)
    with pytest.raises(checks.InputError, match="one or two numbers"):
        coordinate(profl.cases.pricing(clients=2, goods=3))


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser, written):
    """The page on a phone, and everything it complained about."""
    context = browser.new_context(viewport=PHONE, offline=True)
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else complaints.append(request.url),
    )
    opened.goto(written.as_uri())
    opened.wait_for_selector("html[data-ready=yes]", state="attached")
    yield opened, complaints
    context.close()


def test_every_figure_is_drawn_without_complaint(tab):
    opened, complaints = tab
    panels = opened.query_selector_all("[data-panel]")
    assert len(panels) == 4
    data = json.loads(opened.inner_text("#data") or opened.eval_on_selector("#data", "e => e.textContent"))
    for panel in panels:
        lines = panel.query_selector_all("path.mean[data-line]")
        assert len(lines) == len(data[panel.get_attribute("data-panel")]["lines"])
        box = panel.query_selector("svg").bounding_box()
        assert box["width"] > 200
        assert box["height"] > 150
        assert not re.search("NaN|Infinity|undefined", panel.inner_html())
    assert complaints == []


def test_a_legend_toggle_hides_a_line_and_brings_it_back(tab):
    opened, complaints = tab
    for name in ("table1-0", "landscape-0"):
        button = opened.query_selector(f"#{name} button[data-toggle='1']")
        for pressed, lines in (("false", 1), ("true", 2)):
            button.click()
            assert button.get_attribute("aria-pressed") == pressed
            assert len(opened.query_selector_all(f"#{name} path.mean[data-line]")) == lines
    assert complaints == []


def test_hover_reads_values_and_the_scale_changes(tab):
    opened, complaints = tab
    svg = opened.query_selector("#table1-0 svg")
    svg.hover()
    assert "PFL" in opened.inner_text("#table1-0 .readout")
    scale = opened.query_selector("#table1-0 button.scale")
    before = svg.inner_html()
    scale.click()
    assert scale.inner_text() == "log"
    assert svg.inner_html() != before
    assert not re.search("NaN|Infinity", svg.inner_html())
    assert "above the optimum" in svg.text_content()  # a risk may be negative
    assert complaints == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_sideways_scrolling_on_a_phone(tab, scheme):
    opened, _ = tab
    opened.emulate_media(color_scheme=scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    ink, paper = (
        [int(v) for v in re.findall(r"\d+", opened.evaluate(f"getComputedStyle(document.body).{name}"))[:3]]
        for name in ("color", "backgroundColor")
    )
    assert (sum(ink) > sum(paper)) == (scheme == "dark")
