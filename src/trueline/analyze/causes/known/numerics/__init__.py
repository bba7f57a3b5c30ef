"""Where numbers overflow, vanish or jump."""
