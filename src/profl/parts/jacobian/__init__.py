"""Estimators of df/dsignal from what was deployed and what came in; ``estimators`` has their contract and the table."""
