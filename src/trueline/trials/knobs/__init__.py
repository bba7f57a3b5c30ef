"""Which framework setting a finding needs."""
