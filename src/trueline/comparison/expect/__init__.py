"""How large a difference rounding explains, op by op."""
