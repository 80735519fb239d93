"""A tag of a page with live parts, so that a refresh of a page that shows the same is answered with status 304.

What differs in each response is not in the tag: ages, which the browser counts, and CSRF tokens.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.cache import get_conditional_response, patch_cache_control, patch_vary_headers

from .ages import COUNTED

#: The attribute of an element that live.js refreshes.
_LIVE: Final = re.compile(r"\sdata-horsies-live[\s>]")

_CSRF_TOKEN: Final = re.compile(r'(?<=name="csrfmiddlewaretoken" value=")[^"]*')


def answer_unchanged(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Have a page tagged when it is rendered, and answered with 304 if the request has its tag."""
    if request.method == "GET" and isinstance(response, SimpleTemplateResponse):
        response.add_post_render_callback(lambda rendered: _answer(request, rendered))
    return response


def _answer(request: HttpRequest, response: Any) -> HttpResponse | None:
    if response.status_code != 200 or (tag := _tag_of(response.content.decode(response.charset))) is None:
        return None
    patch_vary_headers(response, ["Cookie"])
    patch_cache_control(response, private=True, no_cache=True)  # admin pages have no-store besides
    # Weak, because pages with the same tag differ in their ages.
    response.headers["ETag"] = f'W/"{tag}"'
    answer: HttpResponse | None = get_conditional_response(request, etag=response.headers["ETag"], response=response)
    return answer


def _tag_of(html: str) -> str | None:
    """Return a digest of what a page shows; None if it has no live part."""
    if not _LIVE.search(html):
        return None
    return blake2b(COUNTED.sub("", _CSRF_TOKEN.sub("", html)).encode(errors="replace"), digest_size=16).hexdigest()
