"""A campaign's page: what it says, that it needs nothing but itself, and the same page with a form for data."""

from __future__ import annotations

import io
import json
import re
import threading
import time

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import profl
from profl import cli
from profl.campaign import charts, page, plot, slopes
from profl.objects import import_object
from profl.results.cells import number
from tests.campaign_shop import DAYS, PROBLEM, sold

TOKEN = "a-secret-of-the-test"
SHOPS = ["Basel", "Bern </script>"]
PHONE = {"width": 390, "height": 844}


def make(folder, name, method, weeks=0):
    """A campaign of two shops after some weeks, in a folder with its problem."""
    (folder / "problem.py").write_text(PROBLEM)
    spec = f"{folder}/problem.py:problem"
    source = {"problem": spec, "method": {"name": name}, "method_words": name, "stop": None}
    own = profl.Campaign(
        f"sqlite:///{folder}/p.db", import_object(spec), method, SHOPS, samples=DAYS, deadline=7, source=source
    )
    for week in range(weeks):
        asked = own.ask()
        if week == 1:
            own.skip(asked[0].id, "closed <for> repairs")
        own.tell_frame(sold(asked.frame()).iloc[DAYS if week == 1 else 0 :])
    own.ask()
    return own


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """Eight weeks of prm, which states what it learned and what is left to gain."""
    folder = tmp_path_factory.mktemp("known")
    with make(folder, "prm", profl.prm(), weeks=8) as campaign:
        yield campaign, folder


@pytest.fixture
def plain(tmp_path):
    """A campaign before its first week, of a method that states neither."""
    with make(tmp_path, "pofl", profl.pofl(jacobian="least_squares")) as campaign:
        yield campaign, tmp_path


def text_of(html):
    return " ".join(re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL).split())


def test_the_page_says_what_is_known(known):
    campaign, _ = known
    html = page.page(campaign.report())
    text = text_of(html)
    expected, intervals = campaign.forecast(), campaign.forecast(level=0.9)
    assert intervals.excess.lower <= intervals.excess.estimate <= intervals.excess.upper
    for words in (
        f"left to gain {' '.join(number(end) for _, *ends in intervals.rows()[-1:] for end in ends)}",
        "round 9 8 closed",
        "deployments out 2 none overdue",
        "told 15 105 rows, 2 clients",
        "What is deployed where",
        "Basel 17 awaited",
        "apples",
        "Left to gain",
        "How the data react",
        "With 95 % intervals, as the method states them:",
        "closed &lt;for&gt; repairs",
        "Go on." if not expected.stop else "Stop:",
    ):
        assert words in text, words
    assert html.count('<figure class="chart"') == 2 + 3  # two prices; risk, left to gain, one more deployment


def test_the_page_stands_alone_and_text_cannot_become_markup(known):
    campaign, _ = known
    html = page.page(campaign.report())
    assert not re.search(r'(src|href)="(?!#|data:)', html)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)
    assert "@import" not in html
    assert "fetch(" not in html
    assert "Bern </script>" not in html
    assert "Bern &lt;/script&gt;" in html
    for figures in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html):
        json.loads(figures)


def test_the_figures_are_those_of_the_run(known):
    campaign, _ = known
    report = campaign.report()
    before = len(campaign.events())
    run = campaign.run()
    assert len(campaign.events()) == before  # nothing was due
    np.testing.assert_array_equal(report.models, run.theta[0])
    np.testing.assert_allclose([one.risk for one in report.rounds], run.live.risk[0, 1:], rtol=1e-6)
    np.testing.assert_allclose([one.low for one in report.rounds], run.live.low[0, 1:], rtol=1e-6)
    assert [one.told for one in report.rounds] == [2, 1, *[2] * 6]
    found = report.slopes
    assert found.mean.shape == found.error.shape == (2, 2, 2)
    assert (found.inputs, found.outputs) == (["apples", "pears"], ["sold_apples", "sold_pears"])
    assert np.all(np.abs(found.mean + 1.5 * np.eye(2)) < 3 * found.error)  # the truth is within what is stated
    assert np.all(found.error < 0.5)


def test_a_report_neither_closes_a_round_nor_replays_one(known, monkeypatch):
    campaign, folder = known
    monkeypatch.setattr(campaign._journal.fold, "use", None)
    before = len(campaign.events())
    campaign.report()
    assert len(campaign.events()) == before
    result = CliRunner().invoke(cli.app, ["campaign", "page", "--db", f"{folder}/p.db", "--out", f"{folder}/a.html"])
    assert result.exit_code == 0, result.output
    assert "With 95\N{NO-BREAK SPACE}% intervals" in (folder / "a.html").read_text()


def test_the_log_alone_is_enough_for_most_of_it(known, monkeypatch):
    _, folder = known
    (folder / "problem.py").rename(folder / "away.py")
    words = ["campaign", "page", "--db", f"{folder}/p.db", "--out", f"{folder}/log.html"]
    assert "--log-only needs no problem" in str(CliRunner().invoke(cli.app, words).exception)
    assert CliRunner().invoke(cli.app, [*words, "--log-only"], catch_exceptions=False).exit_code == 0
    text = text_of((folder / "log.html").read_text())
    assert "Left to gain" in text
    assert "The page was made from the log alone" in text
    (folder / "away.py").rename(folder / "problem.py")


def test_the_picture(known):
    campaign, folder = known
    figure = plot.plot_report(campaign.report(), folder / "prices.png")
    labels = [axis.get_ylabel() for axis in figure.axes]
    assert labels[:2] == ["apples", "pears"]
    assert "per sample" in labels[3]
    assert figure.axes[0].get_legend() is not None
    assert (folder / "prices.png").stat().st_size > 10_000


def test_a_method_that_states_less_is_said_so(plain):
    campaign, _ = plain
    text = text_of(page.page(campaign.report()))
    assert "Nothing is known before the first round closes." in text
    assert "No round has been closed yet." in text
    for _ in range(2):
        campaign.tell_frame(sold(campaign.ask().frame()))
    campaign.ask()
    text = text_of(page.page(campaign.report()))
    assert "The method states no forecast." in text
    assert "No slopes are shown. The method" in text


def test_shared_jacobians_are_shown_without_an_interval(plain):
    campaign, _ = plain
    report = campaign.report()
    made = slopes.Slopes(np.full((2, 1, 2), 0.5), None, ["apples", "pears"], ["f[0]"])
    text = text_of(page.page(report._replace(slopes=made)))
    assert "The method states no interval of each entry." in text


def test_a_campaign_in_memory_has_no_page():
    campaign = profl.Campaign(None, profl.cases.pricing(clients=2, goods=2), profl.pfl(), ["a", "b"])
    with pytest.raises(profl.InputError, match="needs a database"):
        campaign.report()


def test_many_clients_are_a_band(known, monkeypatch):
    campaign, _ = known
    monkeypatch.setattr(page, "MOST_LINES", 1)
    monkeypatch.setattr(page, "MOST_NUMBERS", 1)
    html = page.page(campaign.report())
    assert "all clients" in html
    assert "The first 1 of 2 are drawn." in html


def test_a_logarithmic_axis_of_anything_has_ends():
    for values in ([], [0.0], [-1.0, np.nan], [1.0], [1e-9, 1e9]):
        low, high, ticks = charts.decades(values)
        assert 0 < low < high
        assert 2 <= len(ticks) <= 7


@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [np.nan], [-1e9, 1e9], [1e-12, 2e-12]])
def test_an_axis_of_anything_has_ends_and_round_numbers(values):
    low, high, ticks = charts.limits(values)
    assert low < high
    assert 1 <= len(ticks) <= 12


# -- served ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(plain):
    """(the campaign, a client of the application that serves it)."""
    pytest.importorskip("python_multipart", reason="needs profl[serve]")
    from starlette.testclient import TestClient

    from profl.campaign import serve

    campaign, _ = plain
    return campaign, TestClient(serve.make_app(campaign, TOKEN, max_megabytes=1))


def upload(client, frame, **fields):
    content = frame if isinstance(frame, bytes) else frame.to_csv(index=False).encode()
    return client.post(f"/{TOKEN}/tell", files={"file": ("sales.csv", content, "text/csv")}, data=fields)


def test_data_go_up_and_models_come_down(served):
    campaign, client = served
    answer = client.get(f"/{TOKEN}/")
    assert answer.status_code == 200
    assert "This week's data" in answer.text
    down = client.post(f"/{TOKEN}/ask")
    assert down.headers["content-disposition"] == 'attachment; filename="round_1.csv"'
    asked = pandas.read_csv(io.StringIO(down.text))
    assert asked.client.tolist() == SHOPS
    week = sold(asked)
    assert "Written: 2 deployments, 14 rows." in upload(client, week).text
    again = upload(client, week)  # a double click
    assert again.status_code == 200
    assert "2 had been told before with the same data" in again.text
    assert campaign.status().told == 2
    assert pandas.read_csv(io.StringIO(client.post(f"/{TOKEN}/ask").text)).deployment.tolist() == [3, 4]


def test_two_tabs_that_tell_the_same_deployment(served):
    campaign, client = served
    week = sold(campaign.ask().frame())
    upload(client, week)
    other = week.assign(sold_pears=week.sold_pears + 1)
    answer = upload(client, other.assign(deployment=np.repeat([1, 2], DAYS)).drop(columns="client"))
    assert answer.status_code == 422
    assert "deployment 1 (Basel, round 1) was told on" in answer.text
    assert "with other data: nothing was written" in answer.text


WRONG = {
    "a stranger": (lambda week: week.assign(client="Brn"), "unknown client"),
    "no table": (lambda week: b"\x00\xff\xfe", "nothing was written"),
    "an empty file": (lambda week: b"", "it is no CSV file"),
    "words": (lambda week: week.assign(sold_pears="<b>many</b>"), "must hold numbers"),
    "no column": (lambda week: week.drop(columns="client"), "needs a column"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_cannot_be_used_is_one_sentence_and_nothing_is_written(served, kind):
    change, words = WRONG[kind]
    campaign, client = served
    week, before = sold(campaign.ask().frame()), len(campaign.events())
    answer = upload(client, change(week))
    assert answer.status_code == 422
    [said] = re.findall(r'<p class="advice error" role="status">(.*?)</p>', answer.text)
    assert words in said
    assert "<b>" not in said
    assert len(campaign.events()) == before


def test_changed_units_and_no_file_and_a_campaign_that_is_over(served, monkeypatch):
    campaign, client = served
    upload(client, sold(campaign.ask().frame()))
    week = sold(campaign.ask().frame())
    week[["sold_apples", "sold_pears"]] *= 100
    assert "are they in other units?" in upload(client, week).text
    assert "Written: 2" in upload(client, week, other_units="yes").text
    assert "choose a CSV file first" in client.post(f"/{TOKEN}/tell", data={"other_units": "no"}).text
    monkeypatch.setattr(campaign._journal, "rounds", 2)
    campaign.forecast()
    answer = client.post(f"/{TOKEN}/ask")
    assert answer.status_code == 409
    assert "Nothing more is asked: all 2 rounds are done." in answer.text


def test_a_file_that_is_too_large_is_refused(served):
    _, client = served
    answer = upload(client, b"client,x\n" + b"0" * 2**20)
    assert answer.status_code == 413
    assert "larger than 1 MB: nothing was written" in answer.text


@pytest.mark.parametrize("path", ["/", "/wrong/", f"/{TOKEN}", "/wrong/tell", f"/{TOKEN}x/", "/ü/", f"/{TOKEN}/none"])
def test_without_the_token_nothing_is_shown_or_written(served, path):
    campaign, client = served
    before = len(campaign.events())
    for method in ("get", "post"):
        answer = getattr(client, method)(path, follow_redirects=False)
        assert answer.status_code in (403, 405) or path == f"/{TOKEN}"
        assert "round" not in answer.text
    assert len(campaign.events()) == before


def test_the_page_lets_nobody_else_in(served):
    _, client = served
    headers = client.get(f"/{TOKEN}/").headers
    assert "set-cookie" not in headers
    assert headers["referrer-policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tab(browser):
    """A page on a phone, and everything it complained about."""
    opened = browser.new_context(viewport=PHONE).new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    yield opened, complaints
    opened.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(tab, known, tmp_path, scheme):
    campaign, _ = known
    page.write_page(campaign.report(), tmp_path / "page.html")
    opened, complaints = tab
    opened.emulate_media(color_scheme=scheme)
    opened.goto((tmp_path / "page.html").as_uri())
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    ink, paper = (
        sum(map(int, re.findall(r"\d+", opened.evaluate(f"getComputedStyle(document.body).{name}"))[:3]))
        for name in ("color", "backgroundColor")
    )
    assert (ink > paper) == (scheme == "dark")
    for chart in opened.query_selector_all("figure.chart"):
        assert chart.query_selector("svg").bounding_box()["width"] > 250
        assert not re.search("NaN|Infinity|undefined", chart.inner_html())
    assert complaints == []


def test_pointing_choosing_and_hiding(tab, known, tmp_path):
    campaign, _ = known
    page.write_page(campaign.report(), tmp_path / "page.html")
    opened, complaints = tab
    opened.goto((tmp_path / "page.html").as_uri())
    first = opened.query_selector("figure.chart")
    first.query_selector("svg").hover()
    assert re.match(r"rounds closed \d: .*global model .*clients", first.query_selector(".readout").inner_text())
    opened.select_option("#client", "Basel")
    assert first.query_selector("path.chosen").get_attribute("d").startswith("M")
    assert opened.inner_text("#slopes-of") == "Basel"
    assert opened.query_selector("tr.chosen td").inner_text() == "Basel"
    button = first.query_selector("button[data-kind=client]")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert not first.query_selector("path.client").is_visible()
    assert complaints == []


def test_upload_and_download_in_a_browser(tab, plain, tmp_path):
    import uvicorn

    from profl.campaign import serve

    campaign, _ = plain
    config = uvicorn.Config(serve.make_app(campaign, TOKEN), host="127.0.0.1", port=0, log_level="warning")
    listening = config.bind_socket()
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.05)
        opened, complaints = tab
        opened.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/{TOKEN}/")
        with opened.expect_download() as down:
            opened.click("form[action=ask] button")
        asked = pandas.read_csv(down.value.path())
        sold(asked).to_csv(tmp_path / "sales.csv", index=False)
        opened.set_input_files("input[type=file]", tmp_path / "sales.csv")
        opened.click("form[action=tell] button")
        opened.wait_for_selector("text=Written: 2 deployments, 14 rows.")
        assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert campaign.status().told == 2
        assert complaints == []
    finally:
        server.should_exit = True
        thread.join()
