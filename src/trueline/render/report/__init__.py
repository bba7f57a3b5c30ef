"""The report on Runs, as one page."""
