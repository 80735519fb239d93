"""Check which rows, schedules and workflows in flight the code of this process would break.

``manage.py horsies_check_deploy`` prints the findings. The check calls no code of the project, changes nothing, and
reads a bounded number of rows.
"""

from .check import check_deploy
from .findings import Breakage, DeployReport

__all__ = ["Breakage", "DeployReport", "check_deploy"]
