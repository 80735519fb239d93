"""The tasks of the project."""

from horsies_django import task
from tests.beside.models import Note


@task
def write_note(text: str) -> int:
    return Note.objects.create(text=text).pk
