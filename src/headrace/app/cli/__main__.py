"""`python -m headrace.app.cli` is `headrace`."""

from headrace.app.cli import main

main()
