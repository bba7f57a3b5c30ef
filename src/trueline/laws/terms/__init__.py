"""The terms of a loss: what is added up, and by what each is multiplied and divided."""
