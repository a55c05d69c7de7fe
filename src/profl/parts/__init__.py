"""One client's local step on one batch: filter, estimate f, Jacobian, gradient, update."""
