"""The translations of the admin: complete, compiled, and shown on every page."""

import gettext
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

import django
import polib
import pytest
from django.apps import apps
from django.db import connection
from django.db.models.functions import Now, TruncHour, TruncMinute
from django.urls import reverse
from django.utils import translation
from django.utils.text import capfirst

import horsies_django
from horsies_django.db.expressions import NowPlus
from horsies_django.models import ErrorGroup, Heartbeat, Limit, Queue, Rollup, Schedule, Task, Worker, Workflow
from horsies_django.models.rollup import RollupSpan
from horsies_django.ops.metrics import counts
from horsies_django.workflows.definition_registry import definition_registry
from tests.jobs import tasks

from .factories import create_rows

PACKAGE = Path(horsies_django.__file__).parent
LOCALE = PACKAGE / "locale"
LANGUAGES = sorted(folder.name for folder in LOCALE.iterdir() if folder.is_dir())

pytestmark = pytest.mark.once

#: %(name)s, %d, %(number).1f, %%
PERCENT = re.compile(r"%(?:\(\w+\))?[-#0 +]*\d*(?:\.\d+)?[a-zA-Z%]")


def po_file(language):
    """Return the translations of a language, as they are edited."""
    return polib.pofile(str(LOCALE / language / "LC_MESSAGES" / "django.po"))


def texts_of(entry):
    """Yield each original text of an entry with its translation."""
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr
    for number, text in entry.msgstr_plural.items():
        yield (entry.msgid if number == 0 else entry.msgid_plural), text


def test_german_and_turkish_are_shipped():
    assert {"de", "tr"} <= set(LANGUAGES)


@pytest.mark.parametrize("language", LANGUAGES)
class TestTranslations:
    def test_every_text_is_translated_and_none_is_fuzzy(self, language):
        entries = po_file(language)

        assert len(entries) > 500
        assert [entry.msgid for entry in entries if not entry.translated() or entry.fuzzy] == []
        assert entries.obsolete_entries() == []
        assert not entries.metadata_is_fuzzy

    def test_the_compiled_file_matches_the_po_file(self, language):
        folder = LOCALE / language / "LC_MESSAGES"
        with (folder / "django.mo").open("rb") as file:
            compiled = gettext.GNUTranslations(file)._catalog
        compiled.pop("", None)

        expected = {}
        for entry in po_file(language):
            key = f"{entry.msgctxt}\x04{entry.msgid}" if entry.msgctxt else entry.msgid
            if entry.msgid_plural:
                expected |= {(key, number): text for number, text in entry.msgstr_plural.items()}
            else:
                expected[key] = entry.msgstr

        assert compiled == expected, "django-admin compilemessages was not run"

    def test_translations_keep_the_placeholders(self, language):
        wrong = [
            (original, text)
            for entry in po_file(language)
            for original, text in texts_of(entry)
            if placeholders(original, entry) != placeholders(text, entry)
        ]

        assert wrong == []

    def test_plurals_have_as_many_forms_as_the_languages_rule(self, language):
        entries = po_file(language)
        forms = int(re.match(r"nplurals=(\d+);", entries.metadata["Plural-Forms"])[1])

        plurals = [entry for entry in entries if entry.msgid_plural]
        assert plurals
        assert {len(entry.msgstr_plural) for entry in plurals} == {forms}

    def test_translations_keep_outer_spaces_and_a_final_colon(self, language):
        edges = [(original, text) for entry in po_file(language) for original, text in texts_of(entry)]

        assert [pair for pair in edges if edge(pair[0]) != edge(pair[1])] == []

    @pytest.mark.slow
    @pytest.mark.skipif(not shutil.which("xgettext"), reason="GNU gettext is not installed")
    def test_the_po_file_has_every_text_of_the_code(self, language, tmp_path):
        copy = tmp_path / "horsies_django"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        command = [sys.executable, "-m", "django", "makemessages", "-l", language, "--add-location", "file"]
        # The project of these settings can't be imported from that folder, unless it is installed as editable.
        environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
        subprocess.run(
            [*command, "--no-obsolete"], cwd=copy, env=environment, check=True, capture_output=True, timeout=240
        )

        found = polib.pofile(str(copy / "locale" / language / "LC_MESSAGES" / "django.po"))
        assert {entry.msgid for entry in found} == {entry.msgid for entry in po_file(language)}


def placeholders(text, entry):
    """Return the placeholders of a text: Python's in a format string, else those that JavaScript fills in."""
    if "python-format" in entry.flags:
        return sorted(PERCENT.findall(text))
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name and name.isidentifier())


def edge(text):
    """Return whether a text begins and ends with a space, and whether it ends in a colon."""
    return text[:1].isspace(), text[-1:].isspace(), text.strip().endswith(":")


# The pages.


class Texts(HTMLParser):
    """The texts of a page, and those of its title, label and data attributes. A ``<wbr>`` does not divide a text."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.is_code = self.goes_on = False

    def handle_starttag(self, tag, attrs):
        self.goes_on = tag == "wbr"
        self.is_code = self.is_code or tag in ("script", "style")
        self.texts += [value for name, value in attrs if name in ("title", "aria-label", "data-pause", "data-stale")]

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self.is_code = False

    def handle_data(self, data):
        if not self.is_code:
            text = " ".join(data.split())
            self.texts.append(self.texts.pop() + text if self.goes_on and self.texts else text)
        self.goes_on = False


def texts_on(html):
    parser = Texts()
    parser.feed(html)
    return {text for text in parser.texts if text}


MODELS = (Task, Workflow, Queue, Schedule, Worker, Heartbeat, Limit, ErrorGroup)


@pytest.fixture
def visit(admin_client):
    """Return a function that fetches the HTML of every main page in a language, by the page's name."""
    rows = {model: create_rows(model) for model in MODELS}
    site = "admin:horsies_django_"

    def pages():
        yield "index", reverse("admin:index")
        yield "overview", reverse(f"{site}overview_changelist")
        yield "running now", f"{reverse(f'{site}task_changelist')}?state=running"
        yield "task names", reverse(f"{site}task_names")
        yield "task name", reverse(f"{site}task_name", args=[rows[Task][0].task_name])
        yield "run again", reverse(f"{site}task_run_again", args=[rows[Task][-1].pk])
        for model, made_rows in rows.items():
            name = model._meta.model_name
            yield f"{name}s", reverse(f"{site}{name}_changelist")
            for number, row in enumerate(made_rows):
                yield f"{name} {number}", reverse(f"{site}{name}_change", args=[row.pk])
        for action in ("move", "delete", "cancel_running"):
            yield f"ask {action}", reverse(f"{site}task_do", args=[rows[Task][0].pk, action])
        for action in ("quiet", "stop"):
            yield f"ask {action}", reverse(f"{site}worker_do", args=[rows[Worker][0].pk, action])

    def fetch_pages(language):
        found = {}
        with translation.override(language):
            for name, address in pages():
                response = admin_client.get(address)
                assert response.status_code == 200, address
                found[name] = response.content.decode()
        return found

    return fetch_pages


#: Some texts of each page.
EXPECTED_TEXTS = {
    "index": ("Background tasks", "overview", "queues", "workers", "limits"),
    "overview": ("Tasks by state", "What fails most", "Pause updates"),
    "tasks": ("internal steps", "Retry selected tasks", "last 24 hours", "Due", "run time, attempts"),
    "task 1": ("Why it is not running", "It is scheduled and not due yet.", "Run now"),
    "task 4": ("Failed", "Retry", "Options"),
    "ask move": ("From −100 to 100; higher runs first. Empty: unchanged.",),
    "workflows": ("top-level", "Pause selected workflows", "id, sent"),
    "workflow 0": ("Summary", "Pause updates"),
    "queues": ("latency", "in progress", "Pause selected queues"),
    "queue 0": ("finished in the last hour", "served by", "latency"),
    "schedules": ("task or workflow", "disabled by an operator", "Disable selected schedules", "last run"),
    "schedule 0": ("Next runs", "Disable", "Run the latest only", "Recent runs"),
    "workers": ("tasks in progress", "load", "Quiet selected workers", "Stop selected workers gracefully"),
    "worker 0": ("Tasks in progress", "Serves", "Times"),
    "heartbeats": ("Runner", "sender"),
}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("language", LANGUAGES)
def test_the_pages_are_translated_and_have_no_english_text(language, visit):
    translations = {entry.msgid: entry.msgstr for entry in po_file(language) if not entry.msgid_plural}
    ours = {text.casefold() for text in translations.values()}
    english = {text.casefold() for text in translations if " " in text or text[0].isupper()} - ours
    english -= {definition._meta.name.casefold() for definition in definition_registry.definitions.values()}

    pages = {name: {text.casefold() for text in texts_on(html)} for name, html in visit(language).items()}

    assert {name: texts & english for name, texts in pages.items() if texts & english} == {}
    missing = [
        (name, text)
        for name, expected_texts in EXPECTED_TEXTS.items()
        for text in expected_texts
        if translations[text].casefold() not in pages[name]
    ]
    assert missing == []


@pytest.mark.django_db(transaction=True)
@pytest.mark.slow
def test_german_pages_are_german(visit):
    pages = {name: texts_on(html) for name, html in visit("de").items()}

    assert {"Hintergrundaufgaben", "Warteschlangen", "Workflows"} <= pages["index"]
    assert {"Aufgaben nach Zustand", "Aktualisierung anhalten", "Fällig"} <= pages["overview"]
    assert "Warum sie nicht läuft" in pages["task 0"]
    assert any(re.fullmatch(r"Aufgabe .+ löschen\?", text) for text in pages["ask delete"])
    assert any(re.fullmatch(r"\d+ Aufgaben auf dieser Seite", text) for text in pages["tasks"])


#: Parts of texts that come from rows and settings, which have no translation.
DATA = re.compile(
    r"""
    [0-9a-f…-]{8,} | \(/.*\.py:\d+\) | \w+(?:\.\w+)+ | [A-Z]{2,}(?:_[A-Z]+)* | \{.*\} | <b>odd</b> | every:300
    | event:approved | \b(?:admin|default|free|held|made|noop|Refused|runner)\b
    """,
    re.VERBOSE,
)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_every_text_of_every_page_can_be_translated(visit, settings, tmp_path):
    """In a language that puts every text in brackets, Django's too, no text is outside of them."""
    django_po = [*Path(django.__file__).parent.glob("c*/**/locale/en/LC_MESSAGES/django.po")]
    assert len(django_po) > 3
    entries = {(entry.msgctxt, entry.msgid): entry for path in [*django_po] for entry in polib.pofile(str(path))} | {
        (entry.msgctxt, entry.msgid): entry for entry in po_file("de")
    }
    bracketed = polib.POFile()
    bracketed.metadata = {"Content-Type": "text/plain; charset=utf-8", "Plural-Forms": "nplurals=1; plural=0;"}
    for (context, text), entry in entries.items():
        if "format" not in text.casefold() or " " in text:
            plural = {"msgid_plural": entry.msgid_plural, "msgstr_plural": {0: f"⟦{entry.msgid_plural}⟧"}}
            translation_of_entry = plural if entry.msgid_plural else {"msgstr": f"⟦{text}⟧"}
            bracketed.append(polib.POEntry(msgctxt=context, msgid=text, **translation_of_entry))
    folder = tmp_path / "xx" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    bracketed.save_as_mofile(str(folder / "django.mo"))
    settings.LOCALE_PATHS = [tmp_path]

    names = {definition._meta.name for definition in definition_registry.definitions.values()}
    project = apps.get_app_config("about")  # the index lists its models, which have no translations
    names |= {project.verbose_name, *(capfirst(model._meta.verbose_name_plural) for model in project.get_models())}
    pages = visit("xx")

    assert {(name, text) for name, html in pages.items() for text in bare_texts(html) - names} == set()


def bare_texts(html):
    """Return the texts of a page outside of all brackets, which may enclose elements, that are not data."""
    parser = Texts()
    parser.feed(html)
    before, text = None, "\n".join(parser.texts)
    while before != text:
        before, text = text, re.sub(r"⟦[^⟦⟧]*⟧", "", text)
    return {line for line in text.split("\n") if re.search(r"[^\W\d_]{3,}", DATA.sub("", line))}


# Numbers.

SITE = "/admin/horsies_django/"

#: How many rows of each kind there are; more than an exact count of a queue has.
MANY = 1_234

#: Numbers with a separator that the language has for decimals.
FOREIGN = {
    "en": re.compile(r"(?<![\d.:])\d{1,3}(\.\d{3})+(?![\d.])"),
    "de": re.compile(r"(?<![\d,])\d{1,3}(,\d{3})+(?!\d)"),
}
FOREIGN["tr"] = FOREIGN["de"]


@pytest.fixture
def many_rows(monkeypatch):
    """Create thousands of rows, counted and measured, and return the pages that show their numbers."""
    monkeypatch.setattr(counts, "MAX_COUNTED", 1_200)
    name, group = tasks.noop.module_path, create_rows(ErrorGroup)[0]
    limit = create_rows(Limit)[0]
    Limit.objects.override(max_concurrency=MANY, rate=None)
    worker = Worker.objects.create(id="big", hostname="h", pid=1, threads=2_000)
    columns = {
        "due": {},
        "blocked": {"blocked": True, "deferred": True, "limit_key": limit.pk},
        "scheduled": {"deferred": True, "enqueued_at": NowPlus(3_600)},
        "running": {
            "status": "RUNNING",
            "claimed_at": Now(),
            "started_at": Now(),
            "claim": 1,
            "claimed_by_worker_id": worker.pk,
            "limit_key": limit.pk,
        },
        "failed": {"status": "FAILED", "failed_at": Now(), "error_code": "ODD", "fingerprint": group.pk},
    }
    for values in columns.values():
        Task.objects.bulk_create([Task(task_name=name, **values) for _ in range(MANY)], batch_size=500)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE horsies_tasks")
    facts = {"queue_name": "default", "task_name": name, "count": 12_345, "waits": {"100": 12_345}, "runs": {"100": 1}}
    for span in RollupSpan.values:
        started = {"span": span, "start": TruncHour(Now()) if span == RollupSpan.HOUR else TruncMinute(Now())}
        Rollup.objects.create(**started, outcome="COMPLETED", **facts)
        Rollup.objects.create(**started, outcome="FAILED", error_code="ODD", fingerprint=group.pk, **facts)
    schedule = create_rows(Schedule)[0]
    Schedule.objects.update(run_count=12_345, last_run_at=Now())
    flow = create_rows(Workflow)[0]
    Workflow.objects.filter(pk=flow.pk).update(node_count=12_345)
    progress = {"done": 1_500_000.5, "total": 3_000_000, "message": ""}
    first = Task.objects.filter(status="RUNNING").first()
    Task.objects.filter(pk=first.pk).update(progress=progress)
    lists = ("overview", "task", "queue", "worker", "limit", "errorgroup", "schedule", "workflow")
    pages = {model: f"{SITE}{model}/" for model in lists}
    pages |= {f"task {state}": f"{SITE}task/?state={state}&kind=all" for state in ("pending", "active", "blocked")}
    pages |= {"task names": reverse("admin:horsies_django_task_names")}
    pages |= {"task name": reverse("admin:horsies_django_task_name", args=[name])}
    pages |= {"queue page": f"{SITE}queue/~default/change/", "a due task": f"{SITE}task/{last_due().pk}/change/"}
    pages["a blocked task"] = f"{SITE}task/{Task.objects.blocked().last().pk}/change/"
    for row in (worker, limit, group, schedule, flow, first):
        pages[f"{row._meta.model_name} page"] = reverse(
            f"admin:horsies_django_{row._meta.model_name}_change", args=[row.pk]
        )
    return pages


def last_due():
    return Task.objects.filter(status="PENDING", deferred=False).order_by("-enqueued_at", "-pk").first()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "language", ["de", *(pytest.param(language, marks=pytest.mark.nightly) for language in ("en", "tr"))]
)
def test_every_number_of_every_page_is_written_as_in_the_language(language, many_rows, admin_client):
    comma = "," if language == "en" else "."
    ungrouped = re.compile(
        r"(?<![\w.,:/-])(1200|1230|1233|1234|12345|24690|3702|2468|1500000|3660000|15000000)(?![\w:-])"
    )
    with translation.override(language):
        pages = {name: texts_on(admin_client.get(address).content.decode()) for name, address in many_rows.items()}

    wrong = {(name, text) for name, texts in pages.items() for text in texts if FOREIGN[language].search(text)}
    assert wrong == set()
    assert {(name, text) for name, texts in pages.items() for text in texts if ungrouped.search(text)} == set()
    grouped = re.compile(rf"(?<!\d)\d{{1,3}}{re.escape(comma)}\d{{3}}(?!\d)")
    has_none = {name for name, texts in pages.items() if not any(map(grouped.search, texts))}
    assert has_none == set()
