"""SQLite that says it is MariaDB, and refuses to be connected to."""

from typing import NoReturn

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    vendor = "mysql"
    display_name = "MariaDB"

    def get_new_connection(self, conn_params: object) -> NoReturn:
        raise AssertionError("nobody is to connect to a database that is refused")
