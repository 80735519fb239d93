"""The permissions of every page and every action of the registered models.

The tests read models and actions from the admin site, so they also cover those that are added later.
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

from horsies_django.models import ErrorGroup, Heartbeat
from tests.admin.factories import create_rows

pytestmark = [pytest.mark.django_db, pytest.mark.once, pytest.mark.slow]

APP = "horsies_django"
MODELS = [model for model in admin.site._registry if model._meta.app_label == APP]
ACTIONS = [(model, action) for model in MODELS for action in getattr(admin.site._registry[model], "admin_actions", ())]
PERMISSIONS = sorted({(model, action.permission_name) for model, action in ACTIONS}, key=str)


def named(given: Any) -> str:
    """Return a test's id for a model, an action or a permission."""
    return str(getattr(given, "__name__", getattr(given, "name", given)))


each_model = pytest.mark.parametrize("model", MODELS, ids=named)
each_action = pytest.mark.parametrize(("model", "action"), ACTIONS, ids=named)
each_permission = pytest.mark.parametrize(("model", "permission"), PERMISSIONS, ids=named)


def user(*codenames: str, **flags: bool) -> Any:
    """Return a user with these permissions."""
    made_user = get_user_model().objects.create(username="user", **{"is_staff": True, **flags})
    permissions = Permission.objects.filter(content_type__app_label=APP, codename__in=codenames)
    assert {permission.codename for permission in permissions} == set(codenames)
    made_user.user_permissions.set(permissions)
    return made_user


def client_of(*codenames: str, strict: bool = False, **flags: bool) -> Client:
    """Return a client that a user with these permissions has logged in."""
    client = Client(enforce_csrf_checks=strict)
    client.force_login(user(*codenames, **flags))
    return client


def view_permissions() -> list[str]:
    """Return the view permissions of all models."""
    every = Permission.objects.filter(content_type__app_label=APP, codename__startswith="view_")
    return sorted(every.values_list("codename", flat=True))


def view_permission(model: type[Model]) -> str:
    """Return the view permission of a model: a proxy has that of its concrete model, an error group that of tasks."""
    if model is ErrorGroup:
        return "view_task"
    return f"view_{model._meta.concrete_model._meta.model_name}"


def all_rows() -> dict[str, list[Any]]:
    """Return all rows of the app, by model."""
    return {
        model.__name__: list(model._base_manager.order_by("pk").values())
        for model in apps.get_app_config(APP).get_models()
    }


@dataclass(frozen=True)
class Target:
    """The addresses of a model's admin and of one of its rows."""

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

    def do(self, action: Any) -> str:
        return self.address("do", object_id=quote(self.row.pk), action=action.name)

    def all(self) -> list[str]:
        """Return every address of the model's admin, with the page and the actions of the row."""
        found = []
        for each in admin.site._registry[self.model].get_urls():
            needs = set(each.pattern.converters)
            if each.name and not needs:
                found.append(reverse(f"admin:{each.name}"))
            if each.name and needs == {"object_id"}:
                found.append(reverse(f"admin:{each.name}", args=[quote(self.row.pk)]))
        return [*found, *map(self.do, getattr(admin.site._registry[self.model], "admin_actions", ()))]


def new_target(model: type[Model], action: Any = None) -> Target:
    """Create rows of each kind, and return the target of one that the action applies to."""
    return new_targets(model, action)[-1]


def new_targets(model: type[Model], action: Any = None) -> list[Target]:
    """Create rows of each kind, and return a target for each that the action applies to."""
    fitting = [row for row in create_rows(model) if action is None or action.applies_to(row)]
    assert fitting, f"tests.admin.factories has no {model._meta.verbose_name} to {action.name}: add one"
    return [Target(model, row) for row in fitting]


def valid_data(form: type[Form] | None) -> dict[str, Any]:
    """Return valid data for a form."""
    return {name: _value(field) for name, field in form().fields.items()} if form else {}


def _value(field: Any) -> Any:
    if isinstance(field, ChoiceField):
        return next(value for value, _ in field.choices if value)
    if isinstance(field, JSONField):
        return "{}"
    return 7 if isinstance(field, IntegerField) else "anything"


def do(client: Client, target: Target, action: Any) -> Any:
    """Run the action from the page of the row, and confirm it."""
    return client.post(target.do(action), {"confirmed": "1", **valid_data(action.form)})


def do_to_selected(client: Client, target: Target, action: Any, across: str = "0") -> Any:
    """Run the action from the list on the selected row, or on all rows, and confirm it."""
    data = {"action": action.name, "index": "0", "select_across": across, ACTION_CHECKBOX_NAME: [str(target.row.pk)]}
    return client.post(target.list, data | {"confirmed": "1", **valid_data(action.form)})


class Offered(HTMLParser):
    """The actions, the submit buttons and the addresses of links and forms that a page offers."""

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

    def handle_endtag(self, tag: str) -> None:
        self._is_in_actions = self._is_in_actions and tag != "select"


# Users without the view permission.


@each_model
def test_an_anonymous_user_is_redirected_to_the_login(model):
    target = new_target(model)
    before = all_rows()

    for address in target.all():
        for response in (Client().get(address), Client().post(address, {"confirmed": "1", "post": "yes"})):
            assert response.status_code == 302, address
            assert response.url.startswith(reverse("admin:login")), address

    assert all_rows() == before


@each_model
def test_a_user_without_staff_status_is_redirected_to_the_login(model):
    target = new_target(model)
    every = Permission.objects.filter(content_type__app_label=APP).values_list("codename", flat=True)
    client = client_of(*every, is_staff=False)
    before = all_rows()

    for address in target.all():
        for response in (client.get(address), client.post(address, {"confirmed": "1", "post": "yes"})):
            assert response.status_code == 302, address
            assert response.url.startswith(reverse("admin:login")), address

    assert all_rows() == before


@each_model
def test_staff_without_the_view_permission_see_and_change_nothing(model):
    target = new_target(model)
    client = client_of(*(set(view_permissions()) - {view_permission(model)}))
    before = all_rows()

    for address in target.all():
        assert client.get(address).status_code == 403, address
        assert client.post(address, {"confirmed": "1", "post": "yes"}).status_code == 403, address

    assert all_rows() == before
    assert target.list not in Offered(client.get(reverse("admin:index"))).addresses


@each_permission
def test_an_action_permission_does_not_include_the_view_permission(model, permission):
    target = new_target(model)
    client = client_of(f"{permission}_{model._meta.model_name}")
    before = all_rows()

    assert client.get(target.page).status_code == 403
    assert client.get(target.list).status_code == 403
    for action in admin.site._registry[model].admin_actions:
        assert do(client, target, action).status_code == 403
        assert do_to_selected(client, target, action).status_code == 403

    assert all_rows() == before


# Users with only the view permission.


@each_model
def test_the_view_permission_opens_each_page_and_allows_no_change(model):
    target = new_target(model)
    client = client_of(view_permission(model))
    before = all_rows()

    pages = [client.get(address) for address in target.pages()]

    assert {page.status_code for page in pages} == {200}
    is_listed = target.list in Offered(client.get(reverse("admin:index"))).addresses
    assert is_listed == (model is not Heartbeat)
    for offered in map(Offered, pages):
        assert offered.actions == set()
        assert offered.submits <= {""}  # the search button
        assert not [address for address in offered.addresses if "/do/" in address or address.endswith("/add/")]
    for address in target.all():
        client.post(address, {"confirmed": "1", "post": "yes", "name": "other"})
    assert all_rows() == before


@each_action
def test_view_permissions_alone_allow_no_action(model, action):
    target = new_target(model, action)
    client = client_of(*view_permissions())
    before = all_rows()

    assert client.get(target.do(action)).status_code == 403
    assert do(client, target, action).status_code == 403
    do_to_selected(client, target, action)
    do_to_selected(client, target, action, "1")

    assert all_rows() == before
    assert not LogEntry.objects.exists()


# Users with one more permission.


@each_permission
def test_a_user_with_one_action_permission_gets_only_its_actions(model, permission):
    client = client_of(view_permission(model), f"{permission}_{model._meta.model_name}")
    actions = admin.site._registry[model].admin_actions
    own_actions = {action.name for action in actions if action.permission_name == permission}

    for row in create_rows(model):
        target = Target(model, row)
        shown = Offered(client.get(target.page)).addresses
        fitting = {action.name for action in actions if action.permission_name == permission and action.applies_to(row)}
        assert {action.name for action in actions if target.do(action) in shown} == fitting
        before = all_rows()
        for action in actions:
            if action.permission_name != permission:
                assert do(client, target, action).status_code == 403
        assert all_rows() == before

    for action in actions:
        if action.permission_name != permission:
            do_to_selected(client, target, action, "1")
    assert all_rows() == before
    assert Offered(client.get(target.list)).actions == own_actions


@pytest.mark.nightly
@each_action
def test_the_action_permission_allows_the_action_on_the_page_of_a_row(model, action):
    client = client_of(view_permission(model), f"{action.permission_name}_{model._meta.model_name}")

    for target in new_targets(model, action):
        before = all_rows()
        response = do(client, target, action)

        assert response.status_code == 302
        assert all_rows() != before, target
        assert LogEntry.objects.filter(object_id=str(target.row.pk)).count() == 1


@pytest.mark.nightly
@each_action
def test_the_action_permission_allows_the_action_in_the_list(model, action):
    target = new_target(model, action)
    client = client_of(view_permission(model), f"{action.permission_name}_{model._meta.model_name}")
    before = all_rows()

    response = do_to_selected(client, target, action)

    assert response.status_code == 302
    assert all_rows() != before
    assert LogEntry.objects.filter(object_id=str(target.row.pk)).count() == 1


@pytest.mark.nightly
@each_model
def test_a_superuser_is_offered_all_actions(model):
    rows = create_rows(model)
    client = client_of(is_superuser=True)
    actions = getattr(admin.site._registry[model], "admin_actions", ())

    assert {action.name for action in actions} <= Offered(client.get(Target(model).list)).actions
    for target in (Target(model, row) for row in rows if actions):
        shown = Offered(client.get(target.page)).addresses
        assert {action.name for action in actions if target.do(action) in shown} == {
            action.name for action in actions if action.applies_to(target.row)
        }


@pytest.mark.nightly
@each_action
def test_a_superuser_may_run_each_action(model, action):
    target = new_target(model, action)
    before = all_rows()

    assert do(client_of(is_superuser=True), target, action).status_code == 302

    assert all_rows() != before


# A read-only admin.


@pytest.fixture
def read_only(settings: Any) -> None:
    settings.TASKS = with_admin(settings.TASKS, "default", {"read_only": True})


def with_admin(backends: dict[str, Any], alias: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the backends with these admin options for one of them."""
    backend = backends[alias]
    return {**backends, alias: {**backend, "OPTIONS": {**backend.get("OPTIONS", {}), "admin": options}}}


@each_model
def test_a_read_only_admin_lets_a_superuser_only_view_retry_and_cancel(read_only, model):
    rows = create_rows(model)
    client = client_of(is_superuser=True)
    actions = getattr(admin.site._registry[model], "admin_actions", ())
    allowed = {action.name for action in actions if action.name in {"retry", "cancel", "cancel_running"}}
    before = all_rows()

    for target in (Target(model, row) for row in rows):
        pages = [client.get(address) for address in target.pages()]
        assert {page.status_code for page in pages} == {200}
        assert Offered(pages[0]).actions == allowed
        for offered in map(Offered, pages):
            assert not offered.submits & {"_save", "_continue", "_addanother"}
            ours = {address for address in offered.addresses if f"/{APP}/" in address}
            assert not [address for address in ours if address.endswith(("/add/", "/delete/"))]
        fitting = {action.name for action in actions if action.applies_to(target.row)}
        assert {
            action.name for action in actions if target.do(action) in Offered(pages[-1]).addresses
        } == allowed & fitting
        for action in (action for action in actions if action.name not in allowed):
            assert do(client, target, action).status_code == 403
            do_to_selected(client, target, action)
            do_to_selected(client, target, action, "1")
        for name in ("change", "delete"):
            if target.pages()[1:]:
                forged = {"post": "yes", "name": "other", "_save": "1"}
                address = target.address(name, object_id=quote(target.row.pk))
                assert client.post(address, forged).status_code == 403, address
        if target.pages()[1:]:
            assert client.get(target.address("add")).status_code == 403
            assert client.post(target.address("add"), {"name": "other", "timing": "every:60"}).status_code == 403
    assert all_rows() == before

    for action in (action for action in actions if action.name in allowed):
        for target in new_targets(model, action):
            assert do(client, target, action).status_code == 302
    assert all_rows() != before or not allowed


def test_one_read_only_backend_of_the_database_makes_its_admin_read_only(settings):
    client, plain = client_of(is_superuser=True), settings.TASKS
    other = {**plain["default"], "OPTIONS": {**plain["default"].get("OPTIONS", {})}}

    for database, is_read_only in (("default", True), ("elsewhere", False)):
        options = {**other["OPTIONS"], "database": database}
        settings.TASKS = with_admin({**plain, "other": {**other, "OPTIONS": options}}, "other", {"read_only": True})

        response = client.get(reverse(f"admin:{APP}_queue_add"))

        assert response.status_code == (403 if is_read_only else 200)


# Requests: GET, confirmation and CSRF.


@pytest.mark.nightly
@each_model
def test_get_requests_change_nothing(model):
    target = new_target(model)
    client = client_of(is_superuser=True)
    before = all_rows()

    for address in target.all():
        client.get(address)
        client.get(address, {"confirmed": "1", "post": "yes"})
    for action in getattr(admin.site._registry[model], "admin_actions", ()):
        chosen = {
            "action": action.name,
            ACTION_CHECKBOX_NAME: str(target.row.pk),
            "confirmed": "1",
            **valid_data(action.form),
        }
        client.get(target.list, chosen)

    assert all_rows() == before
    assert not LogEntry.objects.exists()


@pytest.mark.nightly
@each_action
def test_the_confirmation_page_of_an_action_changes_nothing(model, action):
    target = new_target(model, action)
    client = client_of(is_superuser=True)
    before = all_rows()

    assert client.get(target.do(action)).status_code == 200

    assert all_rows() == before


@each_action
def test_an_action_without_a_csrf_token_is_rejected(model, action):
    target = new_target(model, action)
    client = client_of(is_superuser=True, strict=True)
    before = all_rows()

    assert do(client, target, action).status_code == 403
    assert do_to_selected(client, target, action).status_code == 403
    assert do_to_selected(client, target, action, "1").status_code == 403

    assert all_rows() == before
