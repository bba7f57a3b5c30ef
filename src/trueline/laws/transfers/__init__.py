"""What a rank sends to another, and what arrives there."""
