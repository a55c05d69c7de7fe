"""Flower's SuperExec, which starts each app's process with its token in a file: ``python -m profl.deploy.superexec``.

Flower starts ``flwr-serverapp``, ``flwr-clientapp`` and ``flwr-simulation`` with ``--token TOKEN``. Every user of a
machine can read every command line there (``/proc/PID/cmdline``), and whoever has the token is let in as the run.
The same commands take ``--token-file``. Here that is a file without a name, which only the new process inherits; its
descriptor is all that stands in the command line.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import Any

TOKEN, TOKEN_FILE = "--token", "--token-file"  # of Flower's own commands


class PopenWithTokenFile(subprocess.Popen[Any]):
    """A process whose command line names an inherited file in place of the token that follows ``--token``."""

    def __init__(self, args: Any, **options: Any) -> None:
        if not isinstance(args, list) or TOKEN not in args:
            super().__init__(args, **options)
            return
        place = args.index(TOKEN)
        with tempfile.TemporaryFile() as file:
            file.write(str(args[place + 1]).encode())
            file.seek(0)  # /dev/fd shares the position on some systems
            command = [*args[:place], TOKEN_FILE, f"/dev/fd/{file.fileno()}", *args[place + 2 :]]
            super().__init__(command, pass_fds=(*options.pop("pass_fds", ()), file.fileno()), **options)


def main() -> None:
    from flwr.supercore.cli import flower_superexec

    subprocess.Popen = PopenWithTokenFile  # type: ignore[assignment, misc]  # this process only starts apps
    flower_superexec()


if __name__ == "__main__":
    main()
