"""``profl campaign``: a process may end after every command, and the database is all that is left."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import profl
from profl import cli
from profl.campaign import setting_up
from profl.cli import campaign_open
from tests.campaign_shop import DAYS, POFL, PROBLEM, sold


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """A folder with a problem, in which commands are called."""
    monkeypatch.chdir(tmp_path)
    Path("problem.py").write_text(PROBLEM)
    Path("stores.csv").write_text("town,client\nBS,Basel\nBE,Bern\n")
    return tmp_path


def call(*words):
    """What a command prints, if it ends with status 0."""
    status, text = ended(*words)
    assert status == 0, text
    return text


def ended(*words):
    """(exit status, what was printed) of ``profl campaign``."""
    result = CliRunner().invoke(cli.app, ["campaign", *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def new(*words):
    return call("new", "problem.py:problem", "--db", "p.db", "--clients", "Basel,Bern", *POFL, "-n", str(DAYS), *words)


def refused(monkeypatch, capsys, *words):
    """The one sentence of a command that is refused."""
    monkeypatch.setattr(sys, "argv", ["profl", "campaign", *words])
    assert cli.exit_status() == 2
    [line] = capsys.readouterr().err.splitlines()
    return line


def read(path):
    return json.loads(Path(path).read_text())


def test_a_month_through_the_command_line_alone(shop):
    said = call(
        "new", "problem.py:problem", "--db", "p.db", "--clients", "stores.csv", *POFL, "-n", str(DAYS), "--rounds", "4"
    )
    assert said == "campaign campaign in p.db: 2 clients. Next: profl campaign ask --db p.db\n"
    for week in range(1, 5):
        said = call("ask", "--db", "p.db", "--csv", "next.csv")
        assert said == f"2 deployments of round {week} are in next.csv\n"
        before = Path("next.csv").read_bytes()
        call("ask", "--db", "p.db", "--csv", "next.csv", "--quiet", "--json", "ask.json")
        assert Path("next.csv").read_bytes() == before  # the same ones until they are told
        asked = pandas.read_csv("next.csv")
        assert list(asked.columns) == ["deployment", "client", "purpose", "until", "apples", "pears"]
        content = read("ask.json")
        assert (content["round"], content["over"]) == (week, "")
        assert [one["model"]["apples"] for one in content["deployments"]] == pytest.approx(asked.apples.tolist())
        if week == 3:  # one by one, by number
            for number, own in sold(asked).groupby(asked.deployment.repeat(DAYS).to_numpy()):
                own.drop(columns="client").to_csv("one.csv", index=False)
                assert call("tell", "--db", "p.db", str(number), "one.csv") == "told 1 deployments: 7 rows\n"
            continue
        sold(asked).to_csv("sales.csv", index=False)
        assert call("tell", "--db", "p.db", "--csv", "sales.csv") == "told 2 deployments: 14 rows\n"
        said = call("tell", "--db", "p.db", "--csv", "sales.csv", "--json", "tell.json")
        assert said == "2 had been told before with the same data: nothing was written\n"
        assert [one["again"] for one in read("tell.json")["told"]] == [True, True]
    before = Path("next.csv").read_bytes()
    status, said = ended("ask", "--db", "p.db", "--csv", "next.csv", "--json", "ask.json")
    assert (status, said) == (4, "campaign campaign is over: all 4 rounds are done\n")
    assert read("ask.json")["over"] == "all 4 rounds are done"
    assert Path("next.csv").read_bytes() == before
    assert "over: all 4 rounds are done" in call("status", "--db", "p.db")
    assert call("forecast", "--db", "p.db") == "the method states no forecast\n"
    call("run", "--db", "p.db", "--save", "run.npz", "--json", "run.json", "--quiet")
    run = profl.load("run.npz")
    assert run.rounds.tolist() == [0, 1, 2, 3, 4]
    assert read("run.json")["runs"][0]["algorithm"] == run.algorithm
    expected = 8 / (2 * 1.5)  # the revenue's best price; 2 and 3 were the first ones
    assert abs(run.theta[0, -1] - expected).max() < abs(run.theta[0, 0] - expected).max()


def test_what_was_asked_is_a_table(shop):
    new()
    said = call("ask", "--db", "p.db")
    assert said.splitlines()[0] == "campaign, round 1"
    assert said.splitlines()[1].split() == ["deployment", "client", "purpose", "until", "apples", "pears"]
    assert said.splitlines()[2].split() == ["1", "Basel", "improve", "-", "2", "3"]


def test_status_events_and_list_know_neither_problem_nor_method(shop, monkeypatch):
    new("--deadline", "7")
    call("ask", "--db", "p.db", "--quiet")
    call("skip", "--db", "p.db", "1", "shop closed")
    Path("problem.py").write_text("raise SystemExit")
    monkeypatch.setattr(setting_up, "make", None)  # no plan is made, so nothing can be compiled
    assert "not in this round" in call("status", "--db", "p.db", "--json", "status.json")
    status = read("status.json")
    assert status["absent"] == {"Basel": "skipped: shop closed"}
    assert [(one["client"], one["overdue"]) for one in status["waiting"]] == [("Bern", False)]
    said = call("events", "--db", "p.db", "--csv", "log.csv", "--json", "events.json")
    assert said == ""
    assert [one["kind"] for one in read("events.json")["events"]] == ["opened", "asked", "asked", "skipped"]
    log = pandas.read_csv("log.csv", keep_default_na=False)
    assert log.client.tolist() == ["", "Basel", "Bern", "Basel"]
    assert json.loads(log.body[3]) == {"reason": "shop closed"}
    assert "shop closed" in call("events", "--db", "p.db")
    call("list", "--db", "p.db", "--json", "list.json")
    assert read("list.json")["campaigns"] == [
        {"name": "campaign", "round": 1, "clients": 2, "told": 0, "rows": 0, "waiting": 1, "over": ""}
    ]


def test_nothing_to_ask_yet_is_status_3(shop):
    new()
    call("ask", "--db", "p.db", "--csv", "next.csv", "--quiet")
    sold(pandas.read_csv("next.csv")).query("client == 'Basel'").to_csv("basel.csv", index=False)
    call("tell", "--db", "p.db", "--csv", "basel.csv", "--quiet")
    status, said = ended("ask", "--db", "p.db", "--client", "Basel")
    assert (status, said) == (3, "nothing yet: Basel's part of the round is told\n")
    assert ended("ask", "--db", "p.db", "--client", "Bern")[0] == 0
    assert call("withdraw", "--db", "p.db", "2") == "deployment 2: withdrawn, never put to use\n"
    assert ended("ask", "--db", "p.db", "--client", "Basel")[0] == 0  # a new round


def test_a_campaign_of_another_folder_and_a_method_of_ones_own(shop, monkeypatch):
    """What lies beside the database moves with it; what does not is found where it was."""
    call("new", "problem.py:problem", "--db", "p.db", "--clients", "Basel", "--method", "problem.py:method", "-n", "7")
    (shop / "elsewhere").mkdir()
    for name in ("problem.py", "p.db"):
        (shop / name).rename(shop / "elsewhere" / name)
    monkeypatch.chdir(shop.parent)
    call("ask", "--db", str(shop / "elsewhere" / "p.db"), "--quiet")
    (shop / "elsewhere" / "problem.py").rename(shop / "problem.py")
    status, _ = ended("ask", "--db", str(shop / "elsewhere" / "p.db"), "--problem", f"{shop}/problem.py:problem", "-q")
    assert status == 0


def test_several_campaigns_in_a_database(shop, monkeypatch, capsys):
    new("--name", "apples")
    assert call("ask", "--db", "p.db", "--json", "a.json") != ""  # the only one needs no name
    assert read("a.json")["campaign"] == "apples"
    new("--name", "pears")
    assert "apples, pears; say which one with --name" in refused(monkeypatch, capsys, "status", "--db", "p.db")
    assert "campaign pears" in call("status", "--db", "p.db", "--name", "pears")
    words = ["new", "problem.py:problem", "--db", "p.db", "--clients", "Basel", "--name", "pears"]
    assert "there is a campaign 'pears' in p.db already" in refused(monkeypatch, capsys, *words)


NEW = ["new", "problem.py:problem", "--db", "q.db"]
WRONG = {
    "no such database": (["status", "--db", "none.db"], "none.db: make the campaign first"),
    "no such database to ask": (["ask", "--db", "none.db"], "none.db: make the campaign first"),
    "an empty path": (["ask", "--db", ""], "--db must be a file"),
    "two ways to tell": (["tell", "--db", "p.db", "1", "a.csv", "--csv", "b.csv"], "either ID FILE.csv, or --csv"),
    "nothing to tell": (["tell", "--db", "p.db"], "either ID FILE.csv, or --csv"),
    "no such file": (["tell", "--db", "p.db", "--csv", "none.csv"], "there is no file none.csv"),
    "no such deployment": (["skip", "--db", "p.db", "9", "x"], "there is no deployment 9"),
    "no such client": (["ask", "--db", "p.db", "--client", "Brn"], "did you mean 'Bern'"),
    "no round to run": (["run", "--db", "p.db"], "no round has been closed yet"),
    "a picture of no kind": (["plot", "--db", "p.db", "--out", "a.txt"], "--out must end in"),
    "no problem": ([*NEW[:1], "problem.py:nothing", *NEW[2:], "--clients", "a"], "must be a profl.LiveProblem"),
    "no such method": ([*NEW, "--clients", "a", "--method", "prn"], "did you mean 'prm'"),
    "two methods": ([*NEW, "--clients", "a", "--method", "prm,pfl"], "one method, please"),
    "an option that it lacks": ([*NEW, "--clients", "a", "--learning-rate", "1"], "prm takes no --learning-rate"),
    "options for an object": (
        [*NEW, "--clients", "a", "--method", "problem.py:method", "--window", "3"],
        "--window is for methods by name",
    ),
    "a client twice": ([*NEW, "--clients", "a,a"], "a is there twice"),
    "an empty file of clients": ([*NEW, "--clients", "empty.csv"], "has no clients"),
    "no tolerance": ([*NEW, "--clients", "a", "--tolerance", "-1"], "tolerance must be above 0"),
}


@pytest.fixture
def made(shop):
    new()
    Path("empty.csv").write_text("client\n")
    return shop


@pytest.mark.parametrize("kind", WRONG)
def test_a_mistake_is_one_sentence_and_status_2(made, monkeypatch, capsys, kind):
    words, says = WRONG[kind]
    assert says in refused(monkeypatch, capsys, *words)
    assert not list(made.glob("q.db*"))
    assert not list(made.glob("none*"))


def test_bad_data_leave_everything_as_it_was(made, monkeypatch, capsys):
    call("ask", "--db", "p.db", "--csv", "next.csv", "--quiet")
    week = sold(pandas.read_csv("next.csv"))
    week.to_csv("sales.csv", index=False)
    call("tell", "--db", "p.db", "--csv", "sales.csv", "--quiet")
    call("ask", "--db", "p.db", "--csv", "next.csv", "--quiet")
    week = sold(pandas.read_csv("next.csv"))
    week[["sold_apples", "sold_pears"]] *= 100  # by the hundred
    week.to_csv("sales.csv", index=False)
    said = refused(monkeypatch, capsys, "tell", "--db", "p.db", "--csv", "sales.csv")
    assert "are they in other units? nothing was written" in said.replace("?;", "?")
    call("events", "--db", "p.db", "--json", "e.json", "--quiet")
    assert [one["kind"] for one in read("e.json")["events"]].count("told") == 2
    assert "told 2" in call("tell", "--db", "p.db", "--csv", "sales.csv", "--force")


def test_a_campaign_that_was_made_in_python_is_gone_on_with_there(shop, monkeypatch, capsys):
    namespace: dict = {}
    exec(PROBLEM, namespace)
    with profl.Campaign("sqlite:///p.db", namespace["problem"], namespace["method"], ["Basel"]):
        pass
    assert "round 1, 1 clients" in call("status", "--db", "p.db")
    assert "was made in Python" in refused(monkeypatch, capsys, "ask", "--db", "p.db")


def test_what_new_was_told_stops_the_campaign(shop):
    words = ["--clients", "Basel,Bern", "-n", "7", "--tolerance", "1e6", "--method", "prm"]
    call("new", "problem.py:problem", "--db", "p.db", *words)
    with campaign_open.open_again("p.db", None) as campaign:
        assert campaign._journal.fold.plan.settings.stop == profl.StopWhenSettled(tolerance=1e6)


def test_help_teaches():
    text = CliRunner().invoke(cli.app, ["campaign", "--help"]).output
    assert "profl campaign new problem.py:problem --db prices.db" in " ".join(text.split())
    for name in (
        "new",
        "ask",
        "tell",
        "skip",
        "withdraw",
        "status",
        "events",
        "forecast",
        "run",
        "plot",
        "page",
        "serve",
    ):
        assert "Example: profl campaign" in CliRunner().invoke(cli.app, ["campaign", name, "--help"]).output, name
