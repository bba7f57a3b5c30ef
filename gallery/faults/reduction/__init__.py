"""Faults in what is made of the ranks' gradients, and replicas that come apart."""
