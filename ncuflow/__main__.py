"""`python -m ncuflow`: the command line of `ncuflow.cli`, for which an older Python is one line and no traceback."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  pip asks what pyproject.toml says, a checkout has this
    sys.exit("error: ncuflow needs Python 3.11 or newer, and this is %d.%d" % sys.version_info[:2])  # noqa: UP031

from ncuflow.cli import main

main()
