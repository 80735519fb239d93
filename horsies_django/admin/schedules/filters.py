"""Filters of the schedule list. All choices but the most common ones use an index."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ...ops.keyset.criteria import Criteria
from ..lists.choice_filters import ChoiceFilter
from .state_badge import DISABLED


class ScheduleStateFilter(ChoiceFilter):
    """Filters by enabled or by the reason for being disabled."""

    title = _("state")
    parameter_name = "state"
    options: ClassVar = {
        "enabled": (_("enabled"), Criteria(Q(enabled=True))),
        "disabled": (_("disabled"), Criteria(Q(enabled=False))),
        **{by.value: (words, Criteria(Q(enabled=False, disabled_by=by.value))) for by, words in DISABLED.items()},
    }


class ScheduleProblemFilter(ChoiceFilter):
    """Finds schedules whose latest run could not be sent."""

    title = _("problems")
    parameter_name = "trouble"
    options: ClassVar = {"error": (_("with an error"), Criteria(~Q(last_error="")))}


class SourceFilter(ChoiceFilter):
    """Filters by where schedules are declared: those declared in code have a source."""

    title = _("source")
    parameter_name = "source"
    options: ClassVar = {
        "hand": (_("created by an operator"), Criteria(Q(source=""))),
        "code": (_("defined in code"), Criteria(~Q(source=""))),
    }
