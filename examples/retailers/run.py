"""Prices for five retailers, through ``profl.train`` or over Flower with TLS.

python run.py              in one process, clients in threads
python run.py --flower     SuperLink and five SuperNodes with TLS and client keys on this machine
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import market  # noqa: E402
import retailers  # noqa: E402

import profl  # noqa: E402


@contextlib.contextmanager
def markets(folder: Path):
    """One market process per retailer; all of them are ended at the end."""
    children = []
    try:
        for number in range(retailers.RETAILERS):
            path = folder / f"retailer-{number}.db"
            market.open_database(str(path)).close()
            command = [sys.executable, str(HERE / "market.py"), str(path), "--retailer", str(number)]
            children.append(subprocess.Popen(command))
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def through_train(folder: Path) -> profl.Run:
    clients = [retailers.Retailer(number, folder) for number in range(retailers.RETAILERS)]
    own = retailers.federation
    return profl.train(
        own.problem, own.method, clients, **retailers.SETTINGS, checkpoint=folder / "checkpoints", report=print
    )


def through_flower(folder: Path) -> profl.Run:
    from profl.deploy import LocalFederation, certificates, write_app

    certificates.make(folder / "keys", retailers.RETAILERS)
    settings = {"federation": "retailers:over_flower", "client": "retailers:client", "wait": 120.0, "timeout": 120.0}
    app = write_app(folder / "app", {**settings, "out": str(folder / "run.npz")})
    for name in ("retailers.py", "market.py"):
        (app / name).write_bytes((HERE / name).read_bytes())
    os.environ["RETAILERS"] = str(folder)
    with LocalFederation(folder / "federation", retailers.RETAILERS, folder / "keys") as federation:
        number = federation.submit(app)
        status = federation.wait(number, 1800.0)
        if status != "finished:completed":
            raise SystemExit(f"{status}\n{federation.log('superlink', 60)}")
    return profl.load(folder / "run.npz")


def report(run: profl.Run) -> float:
    """Prints where the run ended; the revenue reached, as a share of the best possible."""
    prices = [float(price) for price in run.theta[0, -1]]
    best, reached = market.revenue(market.best_prices()), market.revenue(prices)
    start = market.revenue([float(price) for price in run.theta[0, 0]])
    print("prices", [round(price, 3) for price in prices], "best", [round(p, 3) for p in market.best_prices()])
    print(
        f"revenue a day: {start:.1f} at the start, {reached:.1f} at the end, {best:.1f} at best: {reached / best:.2%}"
    )
    return reached / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flower", action="store_true", help="over Flower with TLS instead of profl.train")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="retailers-") as name, markets(Path(name)):
        run = through_flower(Path(name)) if options.flower else through_train(Path(name))
    share = report(run)
    print(f"{len(run.incidents)} incidents, {time.monotonic() - started:.0f} s")
    sys.exit(0 if share >= 0.999 else 1)


if __name__ == "__main__":
    main()
