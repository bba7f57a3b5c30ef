"""One planted fault and its healthy twin a file, in a folder for each kind."""
