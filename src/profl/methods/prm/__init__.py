"""``prm``: performative risk minimisation (``profl.methods.prm.method`` says how it works)."""

from profl.methods.prm.method import PRM, prm

__all__ = ["PRM", "prm"]
