"""`python -m ncuflow`: the command line of `ncuflow.cli`."""

from ncuflow.cli import main

main()
