"""How gradients are averaged, and replicas kept equal."""
