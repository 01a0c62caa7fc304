"""A comparison: two evidences become changes with statistics and causes.

A notebook calls the package itself, `ncuflow.compare(…)`: that is `verdict.compared`.
"""

import sys
from collections.abc import Callable
from typing import Any

from ncuflow import CallablePackage


def called() -> Callable[..., Any]:
    """The function that the package is, when it is called."""
    from ncuflow.compare.verdict import compared

    return compared


sys.modules[__name__].__class__ = CallablePackage
