import environ
from celery.schedules import crontab

SECRET_KEY = "not secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "shop"]
DATABASES = {"default": environ.Env().db()}

CELERY_BROKER_URL = "redis://localhost:6379/0"
CELERY_RESULT_BACKEND = "redis://localhost:6379/1"
CELERY_TASK_ROUTES = {
    "shop.tasks.mail_*": {"queue": "emails"},
    "shop.tasks.nightly_report": {"queue": "reports"},
}
CELERY_BEAT_SCHEDULE = {
    "nightly report": {
        "task": "shop.tasks.nightly_report",
        "schedule": crontab(hour=2, minute=30),
        "args": ("sales",),
        "options": {"expires": 3600},
    },
    "stock of books": {
        "task": "shop.tasks.sync_stock",
        "schedule": 300.0,
        "kwargs": {"item": "book"},
    },
}
