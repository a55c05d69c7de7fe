"""The server's side as a Flower ServerApp."""

from __future__ import annotations

import logging
import os
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from profl.run.flower.federation import Federation, from_config
from profl.run.flower.strategy import ProFLStrategy

log = logging.getLogger("flwr")


def make_server_app(
    federation: Federation | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> ServerApp:
    """A ServerApp that runs a federation and writes the finished run to ``out`` (``profl.load`` reads it).

    What is None is read from the run's settings ``checkpoint`` and ``out``; further ``options`` are those of
    ``ProFLStrategy``, and the settings ``timeout``, ``wait``, ``patience``, ``guard`` and ``identities`` stand in for
    them.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        names = ("timeout", "wait", "patience", "guard", "identities")
        settings = {name: config[name] for name in names if name in config} | options
        strategy = ProFLStrategy(
            federation or from_config(config),
            checkpoint=checkpoint or config.get("checkpoint") or None,  # type: ignore[arg-type]
            resume=resume,
            report=log.warning,
            **settings,
        )
        run = strategy.run(grid)
        place = out or config.get("out")
        if place:
            run.save(str(place))
        for line in run.summary().splitlines():
            log.info(line)

    return app


app = make_server_app()
"""Reads everything from the run's settings: what ``serverapp`` in a pyproject can name."""
