"""How near thirty deployments come to the optimum: problems, methods, trials and the benchmark itself."""
