"""A PostgreSQL server for tests: from the binaries on this machine, in a folder of its own, gone afterwards.

It does not run as root, so root starts it as ``nobody``; it listens at a socket in its folder only.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

USER = "profl"


def binaries() -> Path | None:
    """The folder of the newest ``initdb`` and ``pg_ctl``: on the path, or where Debian puts them."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("initdb")
    return found[-1].parent if found else Path(os.path.realpath(on_path)).parent if on_path else None


def why_not() -> str:
    """Why no server can be started; "" if it can."""
    if not find_spec("psycopg"):
        return "no psycopg: pip install 'profl[postgresql]'"
    return "" if binaries() else "no PostgreSQL on this machine: apt-get install postgresql"


@contextmanager
def server() -> Iterator[str]:
    """The URL of a database of a server that runs as long as the context."""
    folder, where = Path(tempfile.mkdtemp(prefix="profl-pg-", dir="/tmp")), binaries()  # a socket's path must be short
    assert where is not None
    nobody = pwd.getpwnam("nobody")
    other = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
    if other:
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)

    def command(name: str, *arguments: str) -> None:
        done = subprocess.run(
            [where / name, "-D", folder / "data", *arguments],
            **{"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **other},
        )
        assert done.returncode == 0, done.stdout

    try:
        command("initdb", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", f"--username={USER}")
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        command("pg_ctl", "--wait", "--timeout=60", f"--options={options}", f"--log={folder}/log", "start")
        try:
            yield f"postgresql://{USER}@/postgres?host={folder}"
        finally:
            command("pg_ctl", "--wait", "--mode=immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
