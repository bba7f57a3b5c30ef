"""Values that are not finite, and ranges that are nearly full."""
