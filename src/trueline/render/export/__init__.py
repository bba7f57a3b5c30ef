"""What Runs hold, in the files of tools that people like."""
