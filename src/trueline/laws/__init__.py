"""One law of training each: what is measured for it, what that says, the checks, and what may be behind a finding."""
