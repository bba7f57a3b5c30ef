"""What is watched: hooks on the model, its parameters and their layout, and the few patches of torch."""
