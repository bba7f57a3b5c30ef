"""How facts become text and are read from it: sentences, JSON documents, tables of a notebook; never a secret."""
