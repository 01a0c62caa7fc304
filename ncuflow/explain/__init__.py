"""An explanation: what limits one kernel, what its warps wait for, what it could gain, and where each number comes from.

A notebook calls the package itself, `ncuflow.explain(…)`: that is the function in `ncuflow/api.py`.
"""

import sys

from ncuflow import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
