"""Which device makes something else of the same work, or whether that follows the software."""
