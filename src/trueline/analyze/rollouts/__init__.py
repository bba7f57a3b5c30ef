"""Do the engine that samples and the trainer agree on the policy? What the checks of rollouts have in common."""
