"""The lower bounds of the metadata are those that ``tox -e lowest`` installs."""

from __future__ import annotations

import re
from configparser import ConfigParser
from itertools import zip_longest

import pytest

from tests.conftest import ROOT
from tests.release.bounds import PROJECT, lower_bounds, lowest_python

pytestmark = pytest.mark.once


@pytest.fixture
def tox() -> ConfigParser:
    parser = ConfigParser(interpolation=None)
    parser.read(ROOT / "tox.ini")
    return parser


def test_tox_installs_exactly_the_lower_bounds(tox):
    lowest = tox["testenv:lowest"]

    assert lowest["base_python"] == f"python{lowest_python()}"
    assert set(lowest["deps"].split()) == {f"{name}=={bound}" for name, bound in lower_bounds().items()}


def test_tox_has_exactly_the_versions_of_the_classifiers(tox):
    classifiers = "\n".join(PROJECT["classifiers"])
    pythons = [version.replace(".", "") for version in re.findall(r"Python :: (3\.\d+)", classifiers)]
    djangos = [version.replace(".", "") for version in re.findall(r"Django :: ([\d.]+)", classifiers)]
    environments = [name for name in re.split(r",\s*", tox["tox"]["env_list"]) if "-django" in name]

    # Later Pythons than Djangos run the last one.
    pairs = zip_longest(pythons, djangos, fillvalue=djangos[-1])
    assert environments == [f"py{python}-django{django}" for python, django in pairs]


def test_the_highest_django_is_the_last_one_that_the_metadata_allows():
    (django,) = (line for line in PROJECT["dependencies"] if line.startswith("Django"))
    highest = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Django :: " in line][-1]

    assert django.partition("<")[2] == f"{highest[:-1]}{int(highest[-1]) + 1}"
