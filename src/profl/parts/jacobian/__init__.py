"""Estimators of df/dsignal from what was deployed and what came in; ``estimator`` has their contract, ``estimators`` the table."""
