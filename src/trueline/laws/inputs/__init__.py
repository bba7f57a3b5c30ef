"""What a model is fed with."""
