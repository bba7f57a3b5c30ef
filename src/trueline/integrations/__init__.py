"""What frameworks call by themselves, so that a script need not be started with ``trueline run``. Each module imports
its framework when it is imported, and passes on what that knows. The callback of each has one name, as loggers of other
tools have: a script imports the one of its framework.
"""
