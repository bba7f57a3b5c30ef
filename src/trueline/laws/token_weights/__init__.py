"""What a token weighs in a loss: counts, division, scale."""
