"""How soon work that is done again shows a device that flips bits."""
