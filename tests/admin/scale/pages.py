"""Find the pages of an admin by its URLs, and by the links and forms of its lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
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

#: Search terms: names and codes of many tasks, of one task and of no task, and nonsense.
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
    "args.order:order-7",
    "state:failed args.email:user42@example.org",
    "metadata.tenant:acme shop",
    "args.user_id:-1",
    'state:failed metadata.tenant:"acme"',
    "state:pending args.0:-1",
    "id:0190a0de",
    "0190a0de",
    "…00000000",
)

#: How many values of one filter are tried, spread over all that it offers.
FILTER_VALUES = 8

#: How many similar links of one row's page are followed, and how many actions of a filtered list.
FEW = 3

#: What is typed into the fields of filter forms, by type of field.
_FILLED = {
    "date": ("2020-01-01", "2100-01-01"),
    "datetime-local": ("2020-01-01T00:00", "2100-01-01T00:00"),
    "number": ("0", "7"),
    "text": ("shop", "only"),
    "search": ("shop", "only"),
}


#: Parameters of a list that are not filters: its order, its search, its page.
_ORDERS = {"o", "sort"}
_NOT_FILTERS = {*_ORDERS, "q", "p", "all"}

#: Filters to which pages of rows link that the large database has not.
_UNLINKED = {"task": [{"waits_for_limit": "stock"}, {"schedule_id": "1"}, {"about": "shop.Order:5"}]}


@dataclass(frozen=True)
class Request:
    """A request for a page: a POST if it has ``data``, else a GET."""

    address: str
    data: dict[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return self.address + (f" {self.data}" if self.data else "")

    def send(self, client: Any) -> Any:
        """Send the request; the changes of a POST are rolled back."""
        if not self.data:
            return client.get(self.address)
        with transaction.atomic(), connection.execute_wrapper(_WriteLimit()):
            with connection.cursor() as cursor:
                cursor.execute("SET LOCAL statement_timeout = '20s'")  # enough for a slow machine
            response = client.post(self.address, self.data)
            transaction.set_rollback(True)
        return response


class _WriteLimit:
    """Limits the writes, which catches an action that changes a million rows without asking."""

    def __init__(self) -> None:
        self._left = 50

    def __call__(self, execute: Any, sql: str, *rest: Any) -> Any:
        self._left -= not sql.startswith("SELECT")
        assert self._left >= 0, "the action starts without asking first"
        return execute(sql, *rest)


def horsies_models(site: admin.AdminSite = admin.site) -> list[type[Model]]:
    """Return horsies_django's models on ``site``."""
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
        """Yield the pages that are about no row, and a few to which those link, such as the page of a task name."""
        for each in self._addresses:
            if not each.pattern.converters:
                request = Request(self._reverse(each.name))
                yield request
                if request != self._list({}):
                    for linked in self._linked_pages(request):
                        yield from (linked, *self._linked_pages(linked))

    def of_rows(self) -> Iterator[Request]:
        """Yield the pages of some rows, including the confirmation pages of actions."""
        actions = [action.name for action in getattr(self.admin, "admin_actions", ())]
        for key in rows_of(self.model):
            for each in self._addresses:
                needs = set(each.pattern.converters)
                if needs == {"object_id"}:
                    yield Request(self._reverse(each.name, object_id=key))
                    yield from self._linked_pages(Request(self._reverse(each.name, object_id=key)))
                if needs == {"object_id", "action"}:
                    yield from (Request(self._reverse(each.name, object_id=key, action=action)) for action in actions)

    def _linked_pages(self, request: Request) -> Iterator[Request]:
        """Yield the pages that a page links to below itself: other views, and the rest of long lists."""
        path = request.address
        below = path.removesuffix("change/")
        page = Page(request.send(self.client).content.decode())
        yield from (
            Request(f"{path}?{urlencode(query)}") for query in _few_of_each(page.queries(page.links), FEW) if query
        )
        links = [link for link in dict.fromkeys(page.links) if link not in (path, below)]
        others = [link for link in links if link.startswith(below) and "/do/" not in link]
        yield from map(Request, others[:FEW])

    def lists(self) -> Iterator[Request]:
        """Yield the list with each filter, order and search, and for each another page."""
        for query in [{}, *self.filters(), *self.sorts(), *self._searches()]:
            yield self._list(query)
            yield from self._next_pages(query)

    def pairs(self, most: int) -> Iterator[Request]:
        """Yield the list with two filters, about ``most`` times, spread over all pairs of filters."""
        filters = self.filters()
        pairs = [one | other for one, other in combinations(filters, 2) if not one.keys() & other.keys()]
        yield from map(self._list, pairs[:: len(pairs) // most + 1])

    def filters(self) -> list[Query]:
        """Return the filters that the list offers."""
        page = self._read({})
        links = [link for link in page.links if link not in page.pager]
        offered = [query for query in page.queries(links) if not query.keys() & _NOT_FILTERS]
        forms = [form for form in page.forms if form.method == "get" and "q" not in form.fields]
        filled = [query for form in forms for query in _fillings(form)]
        return _few_of_each(list(filter(None, [*offered, *filled, *self._filters_of_links])))

    @cached_property
    def _filters_of_links(self) -> list[Query]:
        """The filters in the links of other pages to this list: of each other list, and of its first row."""
        if not self._has_search():
            return []
        found = list(_UNLINKED.get(self.model._meta.model_name or "", ()))
        list_address = self._list({}).address
        for model in horsies_models():
            others = Pages(self.client, model)
            requests = [others._list({}), *others._of_first_row()]
            links = [link for request in requests for link in Page(request.send(self.client).content.decode()).links]
            queries = [link.removeprefix(list_address) for link in links if link.startswith(f"{list_address}?")]
            found += [query for query in Page("").queries(queries) if not query.keys() & _NOT_FILTERS]
        return found

    def sorts(self) -> list[Query]:
        """Return the orders that the list offers, ascending and descending."""
        sorts = [
            query
            for of in [{}, *({"state": state} for state in ("scheduled", "retrying", "running"))]
            for page in [self._read(of)]
            for query in page.queries(page.links)
            if query.keys() & _ORDERS
        ]
        return [*sorts, *({"o": "-" + query["o"].lstrip("-")} for query in sorts if "o" in query)]

    def confirmations(self) -> Iterator[Request]:
        """Yield the confirmation page of each action on all rows, and of a few actions on the rows of a filter."""
        keys = [str(key) for key in rows_of(self.model)[:1]]
        for query in [{}, *self.filters()[:5]]:
            for action in getattr(self.admin, "admin_actions", ())[: FEW if query else None]:
                data = {"action": action.name, "select_across": "1", "index": "0", ACTION_CHECKBOX_NAME: keys}
                yield Request(self._list(query).address, data)

    def _searches(self) -> Iterator[Query]:
        if self._has_search():
            keys = [str(key) for key in rows_of(self.model)[:2]]
            unknown = ["00000000-0000-7000-8000-000000000000"]
            plain = [key.replace("-", "") for key in keys[:1]]
            yield from ({"q": term} for term in [*keys, *plain, *unknown, *TERMS])

    def _has_search(self) -> bool:
        return any("q" in form.fields for form in self._read({}).forms)

    def _next_pages(self, query: Query) -> Iterator[Request]:
        page = self._read(query)
        pager = page.queries(page.pager)
        yield from map(self._list, pager[:1] if query else pager)

    def _read(self, query: Query) -> Page:
        return Page(self._list(query).send(self.client).content.decode())

    def _list(self, query: Query) -> Request:
        options = self.model._meta
        address = self._reverse(f"{options.app_label}_{options.model_name}_changelist")
        return Request(f"{address}?{urlencode(query)}" if query else address)

    def _of_first_row(self) -> list[Request]:
        options = self.model._meta
        name = f"{options.app_label}_{options.model_name}_change"
        keys = rows_of(self.model)[:1] if any(each.name == name for each in self._addresses) else []
        return [Request(self._reverse(name, object_id=key)) for key in keys]

    def _reverse(self, name: str, **arguments: Any) -> str:
        return reverse(self._prefix + name, kwargs=arguments)


def _few_of_each(queries: list[Query], most: int = FILTER_VALUES) -> list[Query]:
    """Return at most ``most`` of the queries that set the same parameters."""
    of: dict[tuple[str, ...], list[Query]] = {}
    for query in queries:
        similar = of.setdefault(tuple(query), [])
        if query not in similar:
            similar.append(query)
    return [query for similar in of.values() for query in similar[:: len(similar) // most + 1]]


def _fillings(form: Form) -> Iterator[Query]:
    """Yield a query for each value of each field of a form, with the other fields left empty."""
    hidden = {name: values[-1] for name, (kind, values) in form.fields.items() if kind == "hidden" and values}
    for name, (kind, values) in form.fields.items():
        if kind not in ("hidden", "submit", "button") and name:
            yield from (hidden | {name: value} for value in _FILLED.get(kind, values) if value)
