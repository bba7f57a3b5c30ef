"""Which modules are wrong by themselves: each given what it was given in a run that is as it should be."""
