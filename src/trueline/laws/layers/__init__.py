"""What the layers of a model are to each other."""
