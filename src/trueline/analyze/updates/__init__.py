"""Does an optimizer do what it declares? Sampled elements of updates, predicted in float64."""
