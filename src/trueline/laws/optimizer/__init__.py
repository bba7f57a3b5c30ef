"""What an optimizer makes of a gradient."""
