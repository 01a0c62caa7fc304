"""An explanation: what limits one kernel, what its warps wait for, what it could gain, and where each number comes from.

A notebook calls the package itself, `ncuflow.explain(…)`: that is `verb.explain`.
"""

import sys
from types import ModuleType
from typing import Any


class _Called(ModuleType):
    """This package, which has modules and is called as well."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from ncuflow.explain.verb import explain

        return explain(*args, **settings)


sys.modules[__name__].__class__ = _Called
