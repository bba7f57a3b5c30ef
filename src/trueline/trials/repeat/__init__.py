"""Which operation does not repeat itself: the job run again, or each operation called again where it is."""
