"""Equal, within rounding, or beyond it, and which call is to blame."""
