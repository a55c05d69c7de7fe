"""The check of the built documentation finds what is wrong with a site."""

from __future__ import annotations

import pytest

from tests import check_site

GOOD = (
    '<h1 id="top">Top</h1><a href="inner/#deep">in</a> <a href="#top">up</a> <a href="https://example.org/x#y">out</a>'
)
DEEP = '<h2 id="deep">Deep</h2><a href="../">home</a> <a href="/index.html#top">home</a>'


@pytest.fixture
def site(tmp_path):
    """A site of two pages without a mistake."""
    (tmp_path / "site" / "inner").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text(GOOD)
    (tmp_path / "site" / "inner" / "index.html").write_text(DEEP)
    return tmp_path / "site"


def test_a_site_without_dead_links(site):
    assert list(check_site.dead(site)) == []


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ('<a href="../gone/">', "does not exist"),
        ('<img src="../picture.png">', "does not exist"),
        ('<a href="../#nowhere">', "has no such anchor"),
        ('<a href="#nowhere">', "has no such anchor"),
    ],
)
def test_a_dead_link_is_found(site, link, why):
    (site / "inner" / "index.html").write_text(DEEP + link)
    (found,) = check_site.dead(site)
    assert found.startswith("inner/index.html: ")
    assert found.endswith(why)


def test_a_page_wider_than_a_phone_is_found(site, capsys):
    (site / "inner" / "index.html").write_text('<div style="width: 400px">wide</div>')
    found = list(check_site.too_wide(site, site.parent / "screenshots"))
    if "not looked at" in capsys.readouterr().err:
        pytest.skip("no browser: apt-get install chromium, or playwright install chromium")
    assert len(found) == 1
    assert found[0].startswith("inner/index.html: ")
    assert {path.name for path in (site.parent / "screenshots").iterdir()} == {"index.png", "inner.png"}
