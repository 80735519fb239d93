"""The list of workflows: the counts of its tabs, its search field, and the search of their inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from ...core.mask import Mask, mask_of
from ...db.expressions import StoredSize, where_in
from ...models import Workflow, WorkflowTask
from ...ops.keyset.criteria import NOTHING, Criteria
from ...ops.keyset.keys import Key
from ...ops.metrics import Count, workflows
from ...ops.payload_view.contents import decode
from ..lists.changelist import KeysetChangeList
from ..lists.payload_search import MAX_SEARCHED_BYTES, PathTerm, Payload, matches_all
from ..lists.search import Search, Takes, Term, by_id, by_payload, combine
from .filters import TreeFilter, WorkflowStateFilter

QUALIFIERS: Final = {"name": Takes.WORD, "key": Takes.WORD, "args": Takes.PATH}

#: The first nodes of each workflow whose inputs are searched.
MAX_NODES: Final = 20


def parse_search(text: str, database: str) -> Search:
    """Parse an unfinished workflow's unique key, or else ids, beginnings of names, and terms for the inputs."""
    text = text.replace("\0", "").strip()
    # A key may look like anything, such as several terms.
    if (search := _by_key(text, database)) is not None:
        return search
    return combine(text, QUALIFIERS, partial(_search_of, database), InputFilter)


def _search_of(database: str, term: Term) -> Search:
    if term.qualifier == "args":
        return by_payload(term)
    if term.qualifier == "key":
        return _by_key(term.text, database) or Search(NOTHING)
    return Search(Criteria(Q(name__startswith=term.text)))


def _by_key(text: str, database: str) -> Search | None:
    """Return the search for the workflow that holds a unique key; None if there is none."""
    holder = Workflow.objects.using(database).holding_unique_key(text or None).values_list("pk", flat=True).first()
    return by_id(holder) if holder else None


class InputFilter:
    """A row filter of workflows: finds those whose input matches all terms.

    The input is the keyword arguments of the first nodes with a task, as they were sent, each masked as on the page of
    the workflow. Values that other nodes provide are no part of it.
    """

    def __init__(self, terms: Sequence[PathTerm]) -> None:
        self._terms = terms

    def __call__(self, workflows: QuerySet[Any]) -> tuple[list[Key], int]:
        """Return the ids of the matching workflows, and the number of characters read."""
        keys = sorted(workflows.order_by().values_list("pk", flat=True))
        if not keys:
            return [], 0
        is_theirs = where_in(workflows.db, keys, "workflow")
        nodes = WorkflowTask.objects.using(workflows.db).filter(is_theirs, task_index__lt=MAX_NODES)
        nodes = nodes.filter(workflow_id__gte=keys[0], workflow_id__lte=keys[-1])  # as for the workflows themselves
        sized = nodes.filter(task_name__isnull=False).annotate(size=StoredSize("kwargs"))
        short = sized.filter(size__lte=MAX_SEARCHED_BYTES).annotate(kwargs_text=Cast("kwargs", TextField())).order_by()
        masks: dict[str, Mask] = {}
        payloads: dict[Key, list[Payload]] = defaultdict(list)
        size = 0
        for key, task_name, text in short.values_list("workflow_id", "task_name", "kwargs_text"):
            name = str(task_name)
            if name not in masks:
                masks[name] = mask_of(name)
            size += len(text)
            payloads[key].append(Payload(masks[name], kwargs=decode(text)))
        return [key for key, payload in payloads.items() if matches_all(self._terms, payload)], size


class WorkflowChangeList(KeysetChangeList):
    """Pages through the workflows by keyset."""

    state_filter_class = WorkflowStateFilter

    def state_counts(self) -> Mapping[str, Count]:
        """Return the number of workflows in each state; nothing if more than the level narrows the list."""
        levels = next((spec for spec in self.filter_specs if isinstance(spec, TreeFilter)), None)
        if self.query or any(spec is not levels for spec in self.active_filters):
            return {}
        only = levels.criteria.rows if levels is not None else Q()
        return workflows.count_by_state(self.root_queryset.db, only or Q(pk__isnull=False))
