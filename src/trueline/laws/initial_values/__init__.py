"""Parameters as training begins with them."""
