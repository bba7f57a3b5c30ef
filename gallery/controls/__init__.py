"""Healthy runs that look unusual, and must stay silent."""
