"""The precision that is declared, and the one that is in force."""
