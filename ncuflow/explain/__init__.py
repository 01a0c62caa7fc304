"""An explanation: what limits one kernel, what its warps wait for, what it could gain, and where each number comes from.

A notebook calls the package itself, `ncuflow.explain(…)`: that is `verb.explain`.
"""

import sys
from collections.abc import Callable
from typing import Any

from ncuflow import CallablePackage


def called() -> Callable[..., Any]:
    """The function that the package is, when it is called."""
    from ncuflow.explain.verb import explain

    return explain


sys.modules[__name__].__class__ = CallablePackage
