"""A campaign's page, live, with a form for this week's data and next week's models.

Whoever knows the address may read and write: it holds a random token, made anew at every start, compared in constant
time; without it the answer is 403. The token is in the addresses of the forms and in no cookie, so another site cannot
write in a visitor's name. It listens on loopback unless another host is asked for.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable
from html import escape
from typing import Any

from profl.campaign.campaign import Campaign, Told
from profl.campaign.page import page
from profl.campaign.store import DatabaseError
from profl.checks import DivergedError, InputError, words

try:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, PlainTextResponse, Response
    from starlette.routing import Route
except ImportError as error:
    raise ImportError(f"serving a page needs {error.name}: pip install 'profl[serve]'") from error

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
REFUSED = (InputError, DivergedError, DatabaseError)


def make_app(campaign: Campaign, token: str, max_megabytes: int = 50) -> Starlette:
    """The application; its page is at ``/TOKEN/``."""
    pages = _Pages(campaign, token, max_megabytes * 2**20)
    routes = [
        Route("/{token}/", pages.show),
        Route("/{token}/tell", pages.tell, methods=["POST"]),
        Route("/{token}/ask", pages.ask, methods=["POST"]),
        Route("/{path:path}", pages.refuse, methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes)


def serve_campaign(campaign: Campaign, host: str, port: int, max_megabytes: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``say`` is told the address, once."""
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        make_app(campaign, token, max_megabytes), host=host, port=port, log_level="warning", access_log=False
    )
    listening = config.bind_socket()
    if host not in LOOPBACK:
        say(f"warning: {host} lets other machines in, unencrypted: whoever has the address below can read and write")
    say(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/{token}/  (Ctrl-C ends it)")
    uvicorn.Server(config).run(sockets=[listening])


class _Pages:
    def __init__(self, campaign: Campaign, token: str, most: int) -> None:
        self.campaign, self.token, self.most = campaign, token, most

    async def show(self, request: Request) -> Response:
        self._check(request)
        return await run_in_threadpool(self._page)

    async def refuse(self, request: Request) -> Response:
        return PlainTextResponse("403: the address is not complete", 403, HEADERS)

    async def ask(self, request: Request) -> Response:
        """Next week's models as a file; it ends the round under way where that is told."""
        self._check(request)
        try:
            deployments = await run_in_threadpool(self.campaign.ask)
        except REFUSED as error:
            return await run_in_threadpool(self._page, str(error), 422)
        if not deployments:
            why = (await run_in_threadpool(self.campaign.status)).over
            return await run_in_threadpool(self._page, f"Nothing more is asked: {why}.", 409)
        name = f"round_{deployments[0].round}.csv"
        content = deployments.frame().to_csv(index=False)
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(content, media_type="text/csv", headers=headers)

    async def tell(self, request: Request) -> Response:
        """This week's data; the page says what was written, or in one sentence why nothing was."""
        self._check(request)
        form = await Request(request.scope, self._limited(request)).form()
        file = form.get("file")
        try:
            if file is None or isinstance(file, str) or not file.filename:
                raise InputError("choose a CSV file first; nothing was written")
            content = await file.read()
            told = await run_in_threadpool(self._tell, content, form.get("other_units") == "yes")
        except REFUSED as error:
            return await run_in_threadpool(self._page, words(error), 422)
        finally:
            await form.close()
        return await run_in_threadpool(self._page, _said(told))

    def _tell(self, content: bytes, other_units: bool) -> list[Told]:
        import pandas

        try:
            frame = pandas.read_csv(io.BytesIO(content))
        except (ValueError, UnicodeError) as error:
            raise InputError(f"it is no CSV file that can be read: {words(error)}; nothing was written") from error
        return self.campaign.tell_frame(frame, check=not other_units)

    def _page(self, said: str = "", status: int = 200) -> Response:
        return HTMLResponse(page(self.campaign.report(), forms(said, status >= 400)), status, HEADERS)

    def _check(self, request: Request) -> None:
        given = request.path_params["token"].encode()
        if not secrets.compare_digest(given, self.token.encode()):
            raise HTTPException(403, "the address is not complete", HEADERS)

    def _limited(self, request: Request) -> Callable[[], Any]:
        """What comes in, until it is more than is taken."""
        size = 0

        async def receive() -> Any:
            nonlocal size
            message = await request.receive()
            size += len(message.get("body", b""))
            if size > self.most:
                text = f"the file is larger than {self.most // 2**20} MB: nothing was written"
                raise HTTPException(413, text, HEADERS)
            return message

        return receive


def forms(said: str = "", error: bool = False) -> str:
    """What stands first on the page: what was just done, and the two forms."""
    kind = " error" if error else ""
    words = f'<p class="advice{kind}" role="status">{escape(said)}</p>' if said else ""
    return (
        f'{words}<div class="forms">'
        '<form method="post" action="tell" enctype="multipart/form-data" data-once>'
        "<h2>This week's data</h2>"
        "<p class=soft>A CSV file with a column client or deployment, then the data. All or nothing is taken.</p>"
        '<input type="file" name="file" accept=".csv,text/csv" required aria-label="CSV file">'
        '<p><label><input type="checkbox" name="other_units" value="yes"> the units changed on purpose</label></p>'
        '<button class="go">Upload</button></form>'
        '<form method="post" action="ask"><h2>Next week\'s models</h2>'
        "<p class=soft>A CSV file with a row per client. Where this round is told, it ends and the next one begins; "
        "else it is the same file again. Reload this page to see what is out.</p>"
        '<button class="go">Download</button></form></div>'
    )


def _said(told: list[Told]) -> str:
    fresh, again = [one for one in told if not one.again], sum(one.again for one in told)
    words = [f"Written: {len(fresh)} deployments, {sum(one.rows for one in fresh):,} rows."] if fresh else []
    if missing := sum(one.missing for one in fresh):
        words.append(f"{missing:,} rows with missing cells were left out.")
    if again:
        words.append(f"{again} had been told before with the same data: nothing was written for them.")
    return " ".join(words)
