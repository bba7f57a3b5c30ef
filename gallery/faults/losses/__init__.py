"""Faults in how the loss weighs its tokens, which all ranks share."""
