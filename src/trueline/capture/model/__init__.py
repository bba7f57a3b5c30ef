"""The watched model: hooks on it, its parameters and their layout, and the few patches of torch."""
