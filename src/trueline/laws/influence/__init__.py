"""What must not influence a loss: other samples, later tokens, padding."""
