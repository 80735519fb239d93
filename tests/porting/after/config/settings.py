import environ

SECRET_KEY = "not secret"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "shop", "horsies_django"]
DATABASES = {"default": environ.Env().db()}

TASKS = {
    "default": {
        "BACKEND": "horsies_django.backend.HorsiesBackend",
        "QUEUES": ["default", "emails", "reports"],
    }
}
