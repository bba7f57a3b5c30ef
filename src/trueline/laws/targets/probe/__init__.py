"""What is measured of labels and targets: which place in the input they are of, and of each sample a digest."""
