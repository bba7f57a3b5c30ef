"""Planted faults: values that are not finite, and ranges that are nearly full."""
