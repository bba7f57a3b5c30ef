"""From findings to causes: signs, the causes that are known, and which of them explains an incident."""
