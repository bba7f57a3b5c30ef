"""Stand-ins for what a training asks of a machine that is not there: a GPU, a download.

This folder is first on PYTHONPATH of a public training; its ``sitecustomize`` puts in place what the environment
variable STAND_INS names, each when the module is imported that it is about. Nothing of it is in the process of a test.
"""
