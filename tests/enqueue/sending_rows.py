"""``python -m tests.enqueue.sending_rows 100 900``: send a task for each of the first 100 rows, then of the next 900.

Prints the peak of this process's memory after each send, in bytes.
"""

import itertools
import os
import re
import sys
from pathlib import Path

import django


def peak() -> int:
    """Return the peak of this process alone: ``ru_maxrss`` begins with the peak of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+) kB", status)[1]) * 1_024


def main():
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.db.models import F

    from tests.enqueue import jobs
    from tests.jobs.models import Entry

    rows = Entry.objects.values(a=F("pk"), b=F("key"))
    for count, end in zip(counts := [int(text) for text in sys.argv[1:]], itertools.accumulate(counts), strict=True):
        handles = jobs.triple.send_many(rows.filter(pk__gt=end - count, pk__lte=end))
        assert len(handles) == count
        print(peak())


if __name__ == "__main__":
    main()
