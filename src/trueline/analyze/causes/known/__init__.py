"""The causes, one file each, in rooms by what is at fault."""
