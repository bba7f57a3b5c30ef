"""What the tables of a Run hold, column by column, for who writes them and who reads them."""
