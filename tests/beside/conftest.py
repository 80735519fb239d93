"""Only ``tox -e beside`` installs the other apps."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("django_celery_beat") else ["test_beside.py"]
