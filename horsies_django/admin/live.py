"""A tag of the live parts of a page, so that a refresh of a page that shows the same is answered with status 304.

Only what live.js replaces is in the tag, without what differs in each response: ages, which the browser counts, and
CSRF tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.template.response import SimpleTemplateResponse
from django.utils.cache import get_conditional_response, patch_cache_control, patch_vary_headers

from .ages import COUNTED

#: The start of an element that live.js refreshes. Values of attributes are escaped, so they contain no brackets.
_LIVE: Final = re.compile(r"<([a-z][a-z0-9]*)\b[^<>]*\sdata-horsies-live(?=[\s>])[^<>]*>")

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
    # Weak, because pages with the same tag differ outside their live parts.
    response.headers["ETag"] = f'W/"{tag}"'
    answer: HttpResponse | None = get_conditional_response(request, etag=response.headers["ETag"], response=response)
    return answer


def _tag_of(html: str) -> str | None:
    """Return a digest of what the live parts of a page show; None if it has no such part."""
    parts = [COUNTED.sub("", _CSRF_TOKEN.sub("", part)) for part in _live_parts(html)]
    return blake2b("\0".join(parts).encode(errors="replace"), digest_size=16).hexdigest() if parts else None


def _live_parts(html: str) -> Iterator[str]:
    """Yield the outermost live elements of a page."""
    at = 0
    while (start := _LIVE.search(html, at)) is not None:
        at, depth = len(html), 0
        for tag in re.compile(rf"<(/?){start[1]}\b").finditer(html, start.start()):
            depth += -1 if tag[1] else 1
            if not depth:
                at = tag.end()
                break
        yield html[start.start() : at]
