"""Other tools' Python interfaces over Trueline's own recorder, so that scripts written for them run unchanged."""
