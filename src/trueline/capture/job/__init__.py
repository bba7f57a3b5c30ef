"""Facts of the whole job: environment, the Plan in force, triggers, and the Sink of its rows."""
