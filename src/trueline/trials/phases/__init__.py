"""Which phase of a step, and which half of the model, a finding needs."""
