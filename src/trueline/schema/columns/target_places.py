"""What a row of the column ``target_places`` holds, for who writes it and who reads it."""

PLACES: tuple[int, ...] = (-1, 0, 1, 2, 3)
"""How many places on from a position the token is looked for that its target may be: the number of targets that have a
token there, for each place, then how many of these are equal to it.
"""
