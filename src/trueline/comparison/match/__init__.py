"""Which call and which value of one Run is which of the other."""
