"""The vocabulary that all other packages share."""
