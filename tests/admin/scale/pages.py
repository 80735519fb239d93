"""The pages of an admin, as they are found: by its addresses, by the links and forms that its list offers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import connection, transaction
from django.db.models import Model
from django.urls import reverse
from django.utils.http import urlencode

from .html import Form, Page, Query
from .rows import rows_of

#: What an operator types: names and codes that many tasks have, that one has, that none has; nothing sensible.
TERMS = (
    "shop.orders.tasks.task_000",
    "shop.reports",
    "migrate_everything",
    "task_199",
    "nothing.has.this",
    "UNHANDLED_EXCEPTION",
    "ONLY_ONE",
    "user42@example.org",
    "the server said 57",
    "order-7",
    "'%_\\",
    "name:shop.orders error:SHOP_ERROR_3 queue:emails",
)

#: So many values of one filter are tried, spread over all that it offers.
ALIKE = 8

#: So many of the links that are alike of one row's page, and verbs of a list that is narrowed.
FEW = 3

#: What is put into fields of the forms that narrow a list.
_FILLED = {
    "date": ("2020-01-01", "2100-01-01"),
    "datetime-local": ("2020-01-01T00:00", "2100-01-01T00:00"),
    "number": ("0", "7"),
    "text": ("shop", "only"),
    "search": ("shop", "only"),
}


#: Parameters of a list that do not narrow it: its order, its search, its page.
_NO_CHOICE = {"o", "q", "p", "all"}


@dataclass(frozen=True)
class Request:
    """A page that can be asked for; with ``data`` it is posted."""

    address: str
    data: dict[str, Any] = field(default_factory=dict, hash=False)
    counts: bool = False  # it works for a while, as the requests after it do

    def __str__(self) -> str:
        return self.address + (f" {self.data}" if self.data else "")

    def send(self, client: Any) -> Any:
        """Ask for it; what is posted changes nothing."""
        if not self.data:
            return client.get(self.address)
        with transaction.atomic(), connection.execute_wrapper(_Patience()):
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = '20s'")  # also on a machine that stands still
            response = client.post(self.address, self.data)
            transaction.set_rollback(True)
        return response


class _Patience:
    """Lets pass what a page may take, not what a verb that does not ask would do to a million rows."""

    def __init__(self) -> None:
        self._left = 50

    def __call__(self, execute: Any, sql: str, *rest: Any) -> Any:
        self._left -= not sql.startswith("SELECT")
        assert self._left >= 0, "it does without asking first"
        return execute(sql, *rest)


def ours(site: admin.AdminSite = admin.site) -> list[type[Model]]:
    """Return the queue's models on ``site``."""
    return [model for model in site._registry if model._meta.app_label == "horsies_django"]


class Pages:
    """The pages of one model."""

    def __init__(self, client: Any, model: type[Model], site: admin.AdminSite = admin.site) -> None:
        self.client = client
        self.model = model
        self.admin = site._registry[model]
        self._prefix = f"{site.name}:"
        self._addresses = [address for address in self.admin.get_urls() if getattr(address, "name", None)]

    def without_row(self) -> Iterator[Request]:
        """Those that are about no row."""
        yield from (Request(self._reverse(each.name)) for each in self._addresses if not each.pattern.converters)

    def of_rows(self) -> Iterator[Request]:
        """Those of some rows, among them what is asked before a verb is done."""
        verbs = [verb.name for verb in getattr(self.admin, "admin_actions", ())]
        for key in rows_of(self.model):
            for each in self._addresses:
                needs = set(each.pattern.converters)
                if needs == {"object_id"}:
                    yield Request(self._reverse(each.name, object_id=key))
                    yield from self._led_to(Request(self._reverse(each.name, object_id=key)), key)
                if needs == {"object_id", "action"}:
                    yield from (Request(self._reverse(each.name, object_id=key, action=verb)) for verb in verbs)

    def _led_to(self, request: Request, key: Any) -> Iterator[Request]:
        """What a row's page leads to below itself: another view of it, more of what it has too much of."""
        path = request.address
        below = path.removesuffix("change/")
        page = Page(request.send(self.client).content.decode())
        yield from (Request(f"{path}?{urlencode(query)}") for query in _some(page.queries(page.links), FEW) if query)
        others = [link for link in dict.fromkeys(page.links) if link.startswith(below) and "/do/" not in link]
        yield from map(Request, others[:FEW])

    def lists(self) -> Iterator[Request]:
        """The list, and each way to narrow, sort and search it; of each a page further on."""
        for query in [{}, *self.choices(), *self.sorts(), *self._searches()]:
            yield self._list(query)
            yield from self._further(query)

    def pairs(self, most: int) -> Iterator[Request]:
        """The list narrowed in two ways, so many times at most, spread over all that is offered."""
        choices = self.choices()
        pairs = [one | other for one, other in combinations(choices, 2) if not one.keys() & other.keys()]
        yield from map(self._list, pairs[:: len(pairs) // most + 1])

    def choices(self) -> list[Query]:
        """What the list offers to narrow it."""
        page = self._read({})
        links = [link for link in page.links if link not in page.pager]
        offered = [query for query in page.queries(links) if not query.keys() & _NO_CHOICE]
        forms = [form for form in page.forms if form.method == "get" and "q" not in form.fields]
        filled = [query for form in forms for query in _fillings(form)]
        return _some(list(filter(None, [*offered, *filled])))

    def sorts(self) -> list[Query]:
        """What the list offers to sort it by, this way and the other."""
        page = self._read({})
        sorts = [query for query in page.queries(page.links) if query.get("o")]
        return [other for query in sorts for other in (query, {"o": "-" + query["o"].lstrip("-")})]

    def asked_of_all(self) -> Iterator[Request]:
        """Each verb on all that the list has, and on all that a choice leaves: what is asked first."""
        keys = [str(key) for key in rows_of(self.model)[:1]]
        for query in [{}, *self.choices()[:5]]:
            for verb in getattr(self.admin, "admin_actions", ())[: FEW if query else None]:
                data = {"action": verb.name, "select_across": "1", "index": "0", ACTION_CHECKBOX_NAME: keys}
                yield Request(self._list(query).address, data, verb.counts_all)

    def _searches(self) -> Iterator[Query]:
        if self._has_search():
            keys = [str(key) for key in rows_of(self.model)[:2]]
            unknown = ["00000000-0000-7000-8000-000000000000"]
            plain = [key.replace("-", "") for key in keys[:1]]
            yield from ({"q": term} for term in [*keys, *plain, *unknown, *TERMS])

    def _has_search(self) -> bool:
        return any("q" in form.fields for form in self._read({}).forms)

    def _further(self, query: Query) -> Iterator[Request]:
        page = self._read(query)
        pager = page.queries(page.pager)
        yield from map(self._list, pager[:1] if query else pager)

    def _read(self, query: Query) -> Page:
        return Page(self._list(query).send(self.client).content.decode())

    def _list(self, query: Query) -> Request:
        options = self.model._meta
        address = self._reverse(f"{options.app_label}_{options.model_name}_changelist")
        return Request(f"{address}?{urlencode(query)}" if query else address)

    def _reverse(self, name: str, **arguments: Any) -> str:
        return reverse(self._prefix + name, kwargs=arguments)


def _some(queries: list[Query], most: int = ALIKE) -> list[Query]:
    """Return about so many of those that are alike, which are those that say something of the same."""
    of: dict[tuple[str, ...], list[Query]] = {}
    for query in queries:
        alike = of.setdefault(tuple(query), [])
        if query not in alike:
            alike.append(query)
    return [query for alike in of.values() for query in alike[:: len(alike) // most + 1]]


def _fillings(form: Form) -> Iterator[Query]:
    """Each value of each field of a form, the others left empty."""
    hidden = {name: values[-1] for name, (kind, values) in form.fields.items() if kind == "hidden" and values}
    for name, (kind, values) in form.fields.items():
        if kind not in ("hidden", "submit", "button") and name:
            yield from (hidden | {name: value} for value in _FILLED.get(kind, values) if value)
