"""profl over a network, with Flower: ``pip install 'profl[flower]'``."""

from profl.engines.flower.client_app import make_client_app
from profl.engines.flower.federation import Federation
from profl.engines.flower.grid import InProcessGrid
from profl.engines.flower.server_app import make_server_app
from profl.engines.flower.strategy import ProFLStrategy

__all__ = ["Federation", "InProcessGrid", "ProFLStrategy", "make_client_app", "make_server_app"]
