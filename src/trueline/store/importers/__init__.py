"""Files that other tools wrote, as Runs: a file a format, each importing torch only in the functions that read."""
