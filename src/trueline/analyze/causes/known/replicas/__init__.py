"""Why replicas that got the same gradients are apart."""
