"""The metrics of one worker, and the HTTP server in its supervisor for them and for health checks. No queries."""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port, validate_host
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ...core.options import MetricsOptions
from ...management.environment import METRICS_PORT, Address
from ...worker.figures import SupervisorFigures, WorkerFigures
from ..access import CHALLENGE, is_open
from . import render

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger("horsies_django.worker")

#: Seconds that a client may take to send its request.
REQUEST_TIMEOUT: Final = 5.0

_TEXT: Final = "text/plain; charset=utf-8"


@contextmanager
def serve(figures: SupervisorFigures, address: Address, options: MetricsOptions) -> Iterator[None]:
    """Serve while the context is entered. Raises ImproperlyConfigured if the address can't be used.

    With a token in the settings, each request needs it, apart from public endpoints; without one, a Host of this
    server.
    """
    try:
        server = _Server(address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ImproperlyConfigured(f"--{METRICS_PORT}: can't listen on {address}: {reason}.") from error
    server.set_app(_App(figures, options))
    logger.info("metrics served url=http://%s/metrics", Address(address.host, server.server_address[1]))
    threading.Thread(target=server.serve_forever, name="horsies-metrics", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _App:
    """The WSGI application."""

    def __init__(self, figures: SupervisorFigures, options: MetricsOptions) -> None:
        self._figures = figures
        self._options = options

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        status, headers, body = self._respond(environ)
        kept = {"Content-Type": _TEXT, "Content-Length": str(len(body)), "Cache-Control": "no-store", **headers}
        start_response(status, list(kept.items()))
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]

    def _respond(self, environ: WSGIEnvironment) -> tuple[str, dict[str, str], bytes]:
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", {"Allow": "GET, HEAD"}, b"Only GET and HEAD.\n"
        if not self._options.token and not _is_own_host(environ.get("HTTP_HOST")):
            return "400 Bad Request", {}, b"Allowed as Host: an IP address, localhost, and those of ALLOWED_HOSTS.\n"
        endpoint = environ["PATH_INFO"].strip("/")
        is_allowed = not self._options.token or is_open(self._options, endpoint, environ.get("HTTP_AUTHORIZATION", ""))
        if not is_allowed:
            return "401 Unauthorized", {"WWW-Authenticate": CHALLENGE}, b"A token is needed: see OPTIONS['metrics'].\n"
        if endpoint == "metrics":
            body, content_type = render(WorkerCollector(self._figures), environ.get("HTTP_ACCEPT", ""))
            return "200 OK", {"Content-Type": content_type}, body
        if endpoint == "health/live":
            return _health(self._figures.is_live, "The supervisor's loop is stuck.")
        if endpoint == "health/ready":
            return _health(self._figures.is_ready, "No runner is up.")
        return "404 Not Found", {}, b"There are /metrics, /health/live and /health/ready.\n"


def _is_own_host(header: str | None) -> bool:
    """Return whether a request's Host is not that of another site, whose page has had its name point here.

    Such a request has the name of the site, never none or an IP address, as those of probes and Prometheus.
    """
    if header is None:
        return True
    domain, _ = split_domain_port(header)
    try:
        ip_address(domain.strip("[]"))
    except ValueError:
        return validate_host(domain, [".localhost", *settings.ALLOWED_HOSTS])
    return True


def _health(is_well: bool, reason: str) -> tuple[str, dict[str, str], bytes]:
    return ("200 OK", {}, b"ok\n") if is_well else ("503 Service Unavailable", {}, f"{reason}\n".encode())


class _Handler(WSGIRequestHandler):
    """Logs no request, and gives up on a client that sends none."""

    timeout = REQUEST_TIMEOUT

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, address: Address) -> None:
        self.address_family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        super().__init__((address.host, address.port), _Handler)

    def server_bind(self) -> None:
        """Bind without looking up a name for the address, which may take as long as the resolver's timeout."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log that a request failed: its client is often gone."""
        logger.debug("metrics request failed client=%s", client_address, exc_info=True)


# The metrics.

_WORKER = ["worker"]


class WorkerCollector(Collector):
    """Collects the metrics of one worker."""

    def __init__(self, figures: SupervisorFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield each metric."""
        figures = self._figures.read()
        yield GaugeMetricFamily(
            "horsies_runners", "Runners that take tasks.", sum(runner.is_up for runner in figures.runners)
        )
        yield GaugeMetricFamily("horsies_runners_configured", "Runners that this worker keeps up.", figures.configured)
        yield CounterMetricFamily(
            "horsies_runner_restarts",
            "Runners started in the place of others.",
            max(0, figures.started - figures.configured),
        )
        ended = CounterMetricFamily(
            "horsies_runner_tasks", "Tasks that ended after an attempt, since the worker began.", labels=["outcome"]
        )
        ended.add_metric(["completed"], figures.ended.completed)
        ended.add_metric(["failed"], figures.ended.failed)
        yield ended
        yield CounterMetricFamily(
            "horsies_runner_retries", "Attempts after which the task was retried.", figures.ended.retried
        )
        yield from _slots(figures)
        yield from _memory(figures)


def _slots(figures: WorkerFigures) -> Iterator[Metric]:
    slots = {"threads": figures.threads, "async_slots": figures.async_slots}
    for kind, text in (("threads", "sync tasks"), ("async_slots", "coroutine tasks")):
        all_slots = GaugeMetricFamily(f"horsies_runner_{kind}", f"Slots for {text}.", labels=_WORKER)
        taken = GaugeMetricFamily(f"horsies_runner_{kind}_taken", f"Slots for {text} that are taken.", labels=_WORKER)
        for runner in figures.runners:
            all_slots.add_metric([runner.worker_id], slots[kind])
            taken.add_metric([runner.worker_id], getattr(runner.activity, f"{kind}_taken"))
        yield from (all_slots, taken)


def _memory(figures: WorkerFigures) -> Iterator[Metric]:
    family = GaugeMetricFamily("horsies_runner_memory_bytes", "Resident memory of a runner.", labels=_WORKER)
    for runner in figures.runners:
        if runner.memory is not None:
            family.add_metric([runner.worker_id], runner.memory)
    yield family
    if figures.memory is not None:
        yield GaugeMetricFamily("horsies_supervisor_memory_bytes", "Resident memory of the supervisor.", figures.memory)
