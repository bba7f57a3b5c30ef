"""The vocabulary of all packages: plain facts without torch. Of files only the Plan and the lock of a Run."""
