"""``prm``: performative risk minimisation (``method`` says how it works)."""
