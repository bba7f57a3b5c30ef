"""`python -m trueline`: the command, where its script is not on PATH."""

from trueline.cli.main import main

main()
