"""``prm``: performative risk minimisation (``profl.methods.prm.method`` says how it works)."""

from profl.methods.prm.method import PRM, prm
from profl.methods.prm.past import PastDeployments, past_deployments

__all__ = ["PRM", "PastDeployments", "past_deployments", "prm"]
