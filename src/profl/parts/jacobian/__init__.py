"""Estimators of df/dsignal from deployments: ``estimator`` has their contract, ``estimators`` the table of names."""
