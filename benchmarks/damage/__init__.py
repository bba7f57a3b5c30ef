"""Files damaged at random, by bytes and by what they mean, and what their readers make of them."""
