"""What belongs to the whole job: environment, the Plan in force, triggers, and where rows go."""
