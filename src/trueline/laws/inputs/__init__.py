"""Inputs that a model is fed with."""
