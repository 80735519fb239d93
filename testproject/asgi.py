"""The site for an ASGI server, with its static files: ``uvicorn testproject.asgi:application``."""

import os

from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")

application = ASGIStaticFilesHandler(get_asgi_application())
