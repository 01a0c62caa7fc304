"""What a page shows of any program's reports.

A notebook calls the package itself, `ncuflow.view(…)`: that is the function in `ncuflow/api.py`.
"""

import sys

from ncuflow import CallablePackage

sys.modules[__name__].__class__ = CallablePackage
