"""One value from what several ranks and micro-batches have of it."""
