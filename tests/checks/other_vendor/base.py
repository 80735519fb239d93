"""SQLite that claims to be MariaDB and refuses connections."""

from typing import NoReturn

from django.db.backends.sqlite3 import base
from django.db.backends.sqlite3.features import DatabaseFeatures


class Features(DatabaseFeatures):
    supports_json_field = True  # a check of Django 6.1 would query SQLite for it


class DatabaseWrapper(base.DatabaseWrapper):
    vendor = "mysql"
    display_name = "MariaDB"
    features_class = Features

    def get_new_connection(self, conn_params: object) -> NoReturn:
        raise AssertionError("no code may connect to an unsupported database")
