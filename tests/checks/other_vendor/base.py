"""SQLite that says it is MariaDB, and refuses to be connected to."""

from typing import NoReturn

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.features import DatabaseFeatures


class Features(DatabaseFeatures):
    supports_json_field = True  # SQLite's own asks the database, in a check of Django 6.1


class DatabaseWrapper(base.DatabaseWrapper):
    vendor = "mysql"
    display_name = "MariaDB"
    features_class = Features

    def get_new_connection(self, conn_params: object) -> NoReturn:
        raise AssertionError("nobody is to connect to a database that is refused")
