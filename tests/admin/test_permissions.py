"""Who may see and do what: every page and every verb of whatever is registered with the admin.

Nothing is listed here by hand, so a page or a verb that is added later is asked about too.
"""

from __future__ import annotations

from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db.models import Model
from django.forms import ChoiceField, Form, IntegerField, JSONField
from django.test import Client
from django.urls import reverse

from tests.admin.factories import made

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]

APP = "horsies_django"
MODELS = [model for model in admin.site._registry if model._meta.app_label == APP]
VERBS = [(model, verb) for model in MODELS for verb in getattr(admin.site._registry[model], "admin_actions", ())]
RIGHTS = sorted({(model, verb.permission_name) for model, verb in VERBS}, key=str)


def named(given: Any) -> str:
    """Return a test's name for a model, a verb or a right."""
    return str(getattr(given, "__name__", getattr(given, "name", given)))


each_model = pytest.mark.parametrize("model", MODELS, ids=named)
each_verb = pytest.mark.parametrize(("model", "verb"), VERBS, ids=named)
each_right = pytest.mark.parametrize(("model", "right"), RIGHTS, ids=named)


def user(*codenames: str, **flags: bool) -> Any:
    """Return a user with these rights."""
    made_user = get_user_model().objects.create(username="somebody", **{"is_staff": True, **flags})
    rights = Permission.objects.filter(content_type__app_label=APP, codename__in=codenames)
    assert {right.codename for right in rights} == set(codenames)
    made_user.user_permissions.set(rights)
    return made_user


def browser(*codenames: str, strict: bool = False, **flags: bool) -> Client:
    """Return the browser of a user with these rights."""
    client = Client(enforce_csrf_checks=strict)
    client.force_login(user(*codenames, **flags))
    return client


def looks() -> list[str]:
    """Return the rights to look at whatever there is."""
    every = Permission.objects.filter(content_type__app_label=APP, codename__startswith="view_")
    return sorted(every.values_list("codename", flat=True))


def look_at(model: type[Model]) -> str:
    """Return the right to look at this one: a proxy asks for that of the rows that it shows."""
    return f"view_{model._meta.concrete_model._meta.model_name}"


def everything() -> dict[str, list[Any]]:
    """Return every row of ours."""
    return {
        model.__name__: list(model._base_manager.order_by("pk").values())
        for model in apps.get_app_config(APP).get_models()
    }


@dataclass(frozen=True)
class Place:
    """The addresses of a model and of one of its rows."""

    model: type[Model]
    row: Model | None = None

    def address(self, name: str, **given: Any) -> str:
        return reverse(f"admin:{APP}_{self.model._meta.model_name}_{name}", kwargs=given)

    @property
    def list(self) -> str:
        return self.address("changelist")

    @property
    def page(self) -> str:
        return self.address("change", object_id=quote(self.row.pk))

    def pages(self) -> list[str]:
        """Return the list, and the page of the row, if rows of this model have one."""
        names = {each.name for each in admin.site._registry[self.model].get_urls()}
        has_page = f"{APP}_{self.model._meta.model_name}_change" in names
        return [self.list, self.page] if has_page else [self.list]

    def do(self, verb: Any) -> str:
        return self.address("do", object_id=quote(self.row.pk), action=verb.name)

    def all(self) -> list[str]:
        """Return every address that the model's admin has, those of its row and of what is done to it among them."""
        found = []
        for each in admin.site._registry[self.model].get_urls():
            needs = set(each.pattern.converters)
            if each.name and not needs:
                found.append(reverse(f"admin:{each.name}"))
            if each.name and needs == {"object_id"}:
                found.append(reverse(f"admin:{each.name}", args=[quote(self.row.pk)]))
        return [*found, *map(self.do, getattr(admin.site._registry[self.model], "admin_actions", ()))]


def place(model: type[Model], verb: Any = None) -> Place:
    """Return the place of a row that is there for it: one that the verb fits."""
    return places(model, verb)[-1]


def places(model: type[Model], verb: Any = None) -> list[Place]:
    """Return the places of a row of each kind that the verb fits."""
    fitting = [row for row in made(model) if verb is None or verb.applies_to(row)]
    assert fitting, f"tests.admin.factories has no {model._meta.verbose_name} to {verb.name}: add one"
    return [Place(model, row) for row in fitting]


def filled(form: type[Form] | None) -> dict[str, Any]:
    """Return what somebody might fill in."""
    return {name: _value(field) for name, field in form().fields.items()} if form else {}


def _value(field: Any) -> Any:
    if isinstance(field, ChoiceField):
        return next(value for value, _ in field.choices if value)
    if isinstance(field, JSONField):
        return "{}"
    return 7 if isinstance(field, IntegerField) else "anything"


def do(client: Client, where: Place, verb: Any) -> Any:
    """Press the button, and say yes to what is asked."""
    return client.post(where.do(verb), {"confirmed": "1", **filled(verb.form)})


def do_to_selected(client: Client, where: Place, verb: Any, across: str = "0") -> Any:
    """Take the action of the list, and say yes to what is asked."""
    data = {"action": verb.name, "index": "0", "select_across": across, ACTION_CHECKBOX_NAME: [str(where.row.pk)]}
    return client.post(where.list, data | {"confirmed": "1", **filled(verb.form)})


class Offered(HTMLParser):
    """The actions of a list, and the addresses that a page's links and forms lead to."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        self.actions: set[str] = set()
        self.addresses: set[str] = set()
        self.submits: set[str] = set()
        self._is_in_actions = False
        self.feed(response.content.decode())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag == "select":
            self._is_in_actions = given.get("name") == "action"
        if tag == "option" and self._is_in_actions and given.get("value"):
            self.actions.add(given["value"])
        if tag == "input" and given.get("type") == "submit":
            self.submits.add(given.get("name", ""))
        self.addresses |= {given[name] for name in ("href", "action", "formaction") if given.get(name)}


# Those who may not even look.


@each_model
def test_who_is_not_logged_in_is_led_to_the_login(model):
    where = place(model)
    before = everything()

    for address in where.all():
        for answer in (Client().get(address), Client().post(address, {"confirmed": "1", "post": "yes"})):
            assert answer.status_code == 302, address
            assert answer.url.startswith(reverse("admin:login")), address

    assert everything() == before


@each_model
def test_who_is_no_staff_is_led_to_the_login_whatever_the_rights(model):
    where = place(model)
    every = Permission.objects.filter(content_type__app_label=APP).values_list("codename", flat=True)
    client = browser(*every, is_staff=False)
    before = everything()

    for address in where.all():
        for answer in (client.get(address), client.post(address, {"confirmed": "1", "post": "yes"})):
            assert answer.status_code == 302, address
            assert answer.url.startswith(reverse("admin:login")), address

    assert everything() == before


@each_model
def test_staff_without_the_right_to_look_see_and_do_nothing(model):
    where = place(model)
    client = browser(*(set(looks()) - {look_at(model)}))
    before = everything()

    for address in where.all():
        assert client.get(address).status_code == 403, address
        assert client.post(address, {"confirmed": "1", "post": "yes"}).status_code == 403, address

    assert everything() == before
    assert where.list not in Offered(client.get(reverse("admin:index"))).addresses


@each_right
def test_a_right_to_act_is_none_to_look(model, right):
    where = place(model)
    client = browser(f"{right}_{model._meta.model_name}")
    before = everything()

    assert client.get(where.page).status_code == 403
    assert client.get(where.list).status_code == 403
    for verb in admin.site._registry[model].admin_actions:
        assert do(client, where, verb).status_code == 403
        assert do_to_selected(client, where, verb).status_code == 403

    assert everything() == before


# Those who may look.


@each_model
def test_who_may_only_look_sees_each_page_and_can_do_nothing(model):
    where = place(model)
    client = browser(look_at(model))
    before = everything()

    pages = [client.get(address) for address in where.pages()]

    assert {page.status_code for page in pages} == {200}
    assert where.list in Offered(client.get(reverse("admin:index"))).addresses
    for offered in map(Offered, pages):
        assert offered.actions == set()
        assert offered.submits <= {""}  # that of the search
        assert not [address for address in offered.addresses if "/do/" in address or address.endswith("/add/")]
    for address in where.all():
        client.post(address, {"confirmed": "1", "post": "yes", "name": "other"})
    assert everything() == before


@each_verb
def test_who_may_only_look_may_not_do_it(model, verb):
    where = place(model, verb)
    client = browser(*looks())
    before = everything()

    assert client.get(where.do(verb)).status_code == 403
    assert do(client, where, verb).status_code == 403
    do_to_selected(client, where, verb)
    do_to_selected(client, where, verb, "1")

    assert everything() == before
    assert not LogEntry.objects.exists()


# Those who may do one thing.


@each_right
def test_who_may_look_and_do_one_thing_is_offered_that_and_may_do_nothing_else(model, right):
    client = browser(look_at(model), f"{right}_{model._meta.model_name}")
    verbs = admin.site._registry[model].admin_actions
    mine = {verb.name for verb in verbs if verb.permission_name == right}

    for row in made(model):
        where = Place(model, row)
        shown = Offered(client.get(where.page)).addresses
        fitting = {verb.name for verb in verbs if verb.permission_name == right and verb.applies_to(row)}
        assert {verb.name for verb in verbs if where.do(verb) in shown} == fitting
        before = everything()
        for verb in verbs:
            if verb.permission_name != right:
                assert do(client, where, verb).status_code == 403
        assert everything() == before

    for verb in verbs:
        if verb.permission_name != right:
            do_to_selected(client, where, verb, "1")
    assert everything() == before
    assert Offered(client.get(where.list)).actions == mine


@each_verb
def test_who_may_do_it_does_it_from_the_page_of_the_row(model, verb):
    client = browser(look_at(model), f"{verb.permission_name}_{model._meta.model_name}")

    for where in places(model, verb):
        before = everything()
        answer = do(client, where, verb)

        assert answer.status_code == 302
        assert everything() != before, where
        assert LogEntry.objects.filter(object_id=str(where.row.pk)).count() == 1


@each_verb
def test_who_may_do_it_does_it_from_the_list(model, verb):
    where = place(model, verb)
    client = browser(look_at(model), f"{verb.permission_name}_{model._meta.model_name}")
    before = everything()

    answer = do_to_selected(client, where, verb)

    assert answer.status_code == 302
    assert everything() != before
    assert LogEntry.objects.filter(object_id=str(where.row.pk)).count() == 1


@each_model
def test_a_superuser_is_offered_all(model):
    rows = made(model)
    client = browser(is_superuser=True)
    verbs = getattr(admin.site._registry[model], "admin_actions", ())

    assert {verb.name for verb in verbs} <= Offered(client.get(Place(model).list)).actions
    for where in (Place(model, row) for row in rows if verbs):
        shown = Offered(client.get(where.page)).addresses
        assert {verb.name for verb in verbs if where.do(verb) in shown} == {
            verb.name for verb in verbs if verb.applies_to(where.row)
        }


@each_verb
def test_a_superuser_may_do_it(model, verb):
    where = place(model, verb)
    before = everything()

    assert do(browser(is_superuser=True), where, verb).status_code == 302

    assert everything() != before


# A read-only admin.


@pytest.fixture
def read_only(settings: Any) -> None:
    settings.TASKS = with_admin(settings.TASKS, "default", {"read_only": True})


def with_admin(stored: dict[str, Any], alias: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with these options of the admin for one backend."""
    backend = stored[alias]
    return {**stored, alias: {**backend, "OPTIONS": {**backend.get("OPTIONS", {}), "admin": options}}}


@each_model
def test_a_read_only_admin_leaves_a_superuser_looking_retry_and_cancel(read_only, model):
    rows = made(model)
    client = browser(is_superuser=True)
    verbs = getattr(admin.site._registry[model], "admin_actions", ())
    left = {verb.name for verb in verbs if verb.name in {"retry", "cancel", "cancel_running"}}
    before = everything()

    for where in (Place(model, row) for row in rows):
        pages = [client.get(address) for address in where.pages()]
        assert {page.status_code for page in pages} == {200}
        assert Offered(pages[0]).actions == left
        for offered in map(Offered, pages):
            assert not offered.submits & {"_save", "_continue", "_addanother"}
            ours = {address for address in offered.addresses if f"/{APP}/" in address}
            assert not [address for address in ours if address.endswith(("/add/", "/delete/"))]
        fitting = {verb.name for verb in verbs if verb.applies_to(where.row)}
        assert {verb.name for verb in verbs if where.do(verb) in Offered(pages[-1]).addresses} == left & fitting
        for verb in (verb for verb in verbs if verb.name not in left):
            assert do(client, where, verb).status_code == 403
            do_to_selected(client, where, verb)
            do_to_selected(client, where, verb, "1")
        for name in ("change", "delete"):
            if where.pages()[1:]:
                forged = {"post": "yes", "name": "other", "_save": "1"}
                address = where.address(name, object_id=quote(where.row.pk))
                assert client.post(address, forged).status_code == 403, address
        if where.pages()[1:]:
            assert client.get(where.address("add")).status_code == 403
            assert client.post(where.address("add"), {"name": "other", "timing": "every:60"}).status_code == 403
    assert everything() == before

    for verb in (verb for verb in verbs if verb.name in left):
        for where in places(model, verb):
            assert do(client, where, verb).status_code == 302
    assert everything() != before or not left


def test_the_strictest_backend_of_the_database_that_the_admin_shows_decides(settings):
    client, plain = browser(is_superuser=True), settings.TASKS
    other = {**plain["default"], "OPTIONS": {**plain["default"].get("OPTIONS", {})}}

    for database, is_read_only in (("default", True), ("elsewhere", False)):
        options = {**other["OPTIONS"], "database": database}
        settings.TASKS = with_admin({**plain, "other": {**other, "OPTIONS": options}}, "other", {"read_only": True})

        answer = client.get(reverse(f"admin:{APP}_queue_add"))

        assert answer.status_code == (403 if is_read_only else 200)


# How it is done.


@each_model
def test_nothing_is_changed_by_get(model):
    where = place(model)
    client = browser(is_superuser=True)
    before = everything()

    for address in where.all():
        client.get(address)
        client.get(address, {"confirmed": "1", "post": "yes"})
    for verb in getattr(admin.site._registry[model], "admin_actions", ()):
        chosen = {"action": verb.name, ACTION_CHECKBOX_NAME: str(where.row.pk), "confirmed": "1", **filled(verb.form)}
        client.get(where.list, chosen)

    assert everything() == before
    assert not LogEntry.objects.exists()


@each_verb
def test_what_is_asked_first_changes_nothing(model, verb):
    where = place(model, verb)
    client = browser(is_superuser=True)
    before = everything()

    assert client.get(where.do(verb)).status_code == 200

    assert everything() == before


@each_verb
def test_nothing_is_done_for_another_site_that_makes_the_browser_ask(model, verb):
    where = place(model, verb)
    client = browser(is_superuser=True, strict=True)
    before = everything()

    assert do(client, where, verb).status_code == 403
    assert do_to_selected(client, where, verb).status_code == 403
    assert do_to_selected(client, where, verb, "1").status_code == 403

    assert everything() == before
