"""``python tests/check_site.py out/site``: no link inside a built site is dead, no page wider than a phone.

Pages are opened in Chromium where there is one, 390 pixels wide; what they look like is written to ``out/screenshots``,
beside the site. Exits 1 with everything that is wrong.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

PHONE = {"width": 390, "height": 844}
WIDEST = """() => {
  const wide = document.documentElement.scrollWidth - window.innerWidth;
  if (wide <= 0) return null;
  const held = (e) => e && (getComputedStyle(e).overflowX !== "visible" || held(e.parentElement));
  const loose = [...document.body.querySelectorAll("*")].filter((e) => !held(e));
  const right = loose.map((e) => [e.getBoundingClientRect().right, e.outerHTML]).sort((a, b) => b[0] - a[0]);
  return `${wide} pixels too wide: ${right.length ? right[0][1].slice(0, 80) : "?"}`;
}"""


class Page(NamedTuple):
    anchors: set[str]
    targets: list[str]


class Reader(HTMLParser):
    """What a page can be pointed at by, and what it points to."""

    def __init__(self) -> None:
        super().__init__()
        self.page = Page(set(), [])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.page.anchors.update(found[name] for name in ("id", "name") if name in found)
        self.page.targets.extend(found[name] for name in ("href", "src") if name in found)


def read(path: Path) -> Page:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def dead(site: Path) -> Iterator[str]:
    """Every internal link that leads nowhere, as a sentence."""
    pages = {path: read(path) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        for target in dict.fromkeys(page.targets):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            found = resolve(site, path, unquote(parts.path))
            if not found.is_file():
                yield f"{path.relative_to(site)}: {target} does not exist"
            elif parts.fragment and found in pages and unquote(parts.fragment) not in pages[found].anchors:
                yield f"{path.relative_to(site)}: {target} has no such anchor"


def resolve(site: Path, page: Path, target: str) -> Path:
    """The file that a link's path means; one that begins with / is meant from the top of the site."""
    if not target:
        return page
    found = site / target.lstrip("/") if target.startswith("/") else page.parent / target
    return (found / "index.html" if target.endswith("/") or found.is_dir() else found).resolve()


def too_wide(site: Path, screenshots: Path) -> Iterator[str]:
    """Every page that a phone would have to scroll sideways, as a sentence."""
    try:
        from playwright import sync_api
    except ImportError:
        print("playwright is not installed: the pages are not looked at", file=sys.stderr)
        return
    system = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    screenshots.mkdir(parents=True, exist_ok=True)
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
        except sync_api.Error as error:
            print(f"no browser ({error.message[:80]}): the pages are not looked at", file=sys.stderr)
            return
        tab = browser.new_context(viewport=PHONE, offline=True).new_page()
        for path in sorted(site.rglob("*.html")):
            tab.goto(path.as_uri())
            tab.wait_for_timeout(200)  # until the theme's script has wrapped tables
            name = "-".join(path.relative_to(site).with_suffix("").parts).removesuffix("-index")
            tab.screenshot(path=screenshots / f"{name}.png")
            if wide := tab.evaluate(WIDEST):
                yield f"{path.relative_to(site)}: {wide}"
        browser.close()


def main(site: Path) -> int:
    site = site.resolve()
    if not (site / "index.html").is_file():
        print(f"expected a built site, found no {site / 'index.html'}: make docs", file=sys.stderr)
        return 1
    wrong = [*dead(site), *too_wide(site, site.parent / "screenshots")]
    print("\n".join(wrong) or f"{len(list(site.rglob('*.html')))} pages, no dead links", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
