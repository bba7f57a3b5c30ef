"""Several steps: what departs from its own history, and since when."""
