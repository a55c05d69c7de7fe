"""A campaign's log without its problem: nothing is imported of the user's, and nothing is computed.

What a campaign was made with is in its first event; where its problem and its method come from is there under
``source``, if it was made on the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

from profl.campaign.fold import Fold
from profl.campaign.journal import Journal, utc_now
from profl.campaign.store import Store
from profl.checks import InputError


def read_log(url: str, name: str = "campaign", clock: Callable[[], datetime] | None = None) -> Journal:
    """The journal of a campaign that is there; it can be read, but not gone on with: that takes ``Campaign``."""
    from profl.campaign.sql import SqlStore

    store: Store = SqlStore(url, name, create=False)
    events = store.read(0)
    if not events:
        store.close()
        raise InputError(f"the campaign {name!r} was never made: make it first")
    settings = events[0].body["settings"]
    deadline = None if settings["deadline"] is None else timedelta(days=settings["deadline"])
    nothing = cast(Fold, None)  # it makes states, of which a log that is only read has none
    journal = Journal(store, nothing, settings["clients"], deadline, settings["rounds"], clock or utc_now)
    journal.refresh()
    return journal


def source_of(journal: Journal) -> dict[str, Any]:
    """Where the campaign's problem and method come from; {} where it was made in Python."""
    opened = journal.ledger.opened
    source: dict[str, Any] = {} if opened is None else opened.body.get("source") or {}
    return source


def campaign_names(url: str) -> list[str]:
    """The campaigns in a database."""
    from profl.campaign.sql import list_campaigns

    return list_campaigns(url)
