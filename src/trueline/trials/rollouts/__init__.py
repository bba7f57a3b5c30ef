"""Why rollout engine and trainer disagree, by experiments on the job itself."""
