"""Where a run of a job takes place: here, or as a job of a cluster; each engine a file."""
