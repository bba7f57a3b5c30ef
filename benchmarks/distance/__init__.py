"""How fast and how exact differences between recorded values are told, and how sure measured floors are."""
