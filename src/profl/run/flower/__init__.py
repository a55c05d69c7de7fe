"""profl over a network, with Flower: ``pip install 'profl[flower]'``. ``profl.deploy`` starts it.

Names are imported when they are first used, so that the command line starts without Flower.
"""

from importlib import import_module
from typing import Any

_PLACES = {
    "Federation": "federation",
    "InProcessGrid": "grid",
    "ProFLStrategy": "strategy",
    "make_client_app": "client_app",
    "make_server_app": "server_app",
}

__all__ = ["Federation", "InProcessGrid", "ProFLStrategy", "make_client_app", "make_server_app"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
