"""What the files of a job say of it: configurations of any framework, scripts, command lines, packs of msProbe."""
