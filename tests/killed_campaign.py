"""A campaign whose operator is killed: ``python -m tests.killed_campaign URL SEED`` asks and tells to the end, or dies.

It dies by SIGKILL at a statement or a commit that the seed chooses; a seed below 0 lets it live.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np
import sqlalchemy as sa

import profl
from tests.faults import campaign_log as faults


def work(url: str) -> None:
    """Ask and tell until nothing more is asked; another process may do the same."""
    with faults.open_campaign(url) as campaign:
        while asked := campaign.ask():
            for deployment in asked:
                try:
                    campaign.tell(deployment.id, faults.answer(deployment))
                except profl.InputError as error:
                    if "nothing was written" not in str(error):
                        raise


def die_at(left: int) -> None:
    """Die when so many statements and commits have begun or ended."""
    real = sa.engine.default.DefaultDialect.do_commit
    counter = [left]

    def point(*_: Any) -> None:
        counter[0] -= 1
        if counter[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def do_commit(dialect: Any, raw: Any) -> None:
        point()
        real(dialect, raw)
        point()

    sa.engine.default.DefaultDialect.do_commit = do_commit
    sa.event.listen(sa.Engine, "before_cursor_execute", point)
    sa.event.listen(sa.Engine, "after_cursor_execute", point)


if __name__ == "__main__":
    url, seed = sys.argv[1], int(sys.argv[2])
    if seed >= 0:
        die_at(int(np.random.default_rng([seed, 36]).integers(150)))
    work(url)
    print("done")
