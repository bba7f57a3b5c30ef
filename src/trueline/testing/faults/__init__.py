"""One planted fault and its healthy twin a file."""
