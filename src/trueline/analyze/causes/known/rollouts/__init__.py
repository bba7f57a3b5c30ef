"""What makes a rollout engine and its trainer disagree."""
