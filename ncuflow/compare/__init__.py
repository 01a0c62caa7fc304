"""A comparison: two evidences become changes with statistics and causes.

A notebook calls the package itself, `ncuflow.compare(…)`: that is `verdict.compared`.
"""

import sys
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """This package, which has modules and is called as well."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from ncuflow.compare.verdict import compared

        return compared(*args, **settings)


sys.modules[__name__].__class__ = _Called
