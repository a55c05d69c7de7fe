"""What starts a federation over Flower: certificates, the app's folder, processes (``pip install 'profl[flower]'``).

``profl.run.flower`` is what then runs in them.
"""

from profl.deploy import certificates
from profl.deploy.apps import write_app
from profl.deploy.processes import LocalFederation

__all__ = ["LocalFederation", "certificates", "write_app"]
