"""What FedRelax can put at a node: least squares, estimators, networks, and how predictions are compared."""
