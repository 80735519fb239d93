"""``horsies_worker --metrics-port``: a worker's own metrics and health checks, without a query."""

import os
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest

from horsies_django.management.environment import parse_address
from tests.conftest import wait_until
from tests.extras.monitoring import families, values
from tests.jobs import tasks

pytestmark = pytest.mark.django_db(transaction=True)


def url_of(process):
    """Return the URL that a worker has logged."""
    return wait_until(lambda: re.search(r"metrics served url=(http://[\d.]+:\d+)/metrics", process.output))[1]


def get(url, token="", **headers):
    """Return the status and the text of a response."""
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metrics(url):
    status, text = get(f"{url}/metrics")
    assert status == 200, text
    return families(text)


@pytest.mark.slow
def test_a_worker_counts_what_has_ended_and_keeps_the_counts_when_a_runner_is_replaced(worker):
    process = worker("--metrics-port", "0", "--threads", "3")
    url = url_of(process)
    assert get(f"{url}/health/live") == (200, "ok\n")
    wait_until(lambda: get(f"{url}/health/ready")[0] == 200)
    for number in range(4):
        tasks.add.send(number)
    tasks.fail.send()
    wait_until(lambda: ended(url) == {("completed",): 4, ("failed",): 1})
    found = metrics(url)
    assert list(values(found["horsies_runner_threads"], "worker").values()) == [3]
    wait_until(lambda: list(values(metrics(url)["horsies_runner_threads_taken"], "worker").values()) == [0])
    assert min(values(found["horsies_runner_memory_bytes"], "worker").values()) > 1_000_000

    pid = int(wait_until(lambda: re.search(r"worker ready id=\S+ pid=(\d+)", process.output))[1])
    os.kill(pid, signal.SIGKILL)

    wait_until(lambda: values(metrics(url)["horsies_runner_restarts"]) == {(): 1})
    wait_until(lambda: get(f"{url}/health/ready")[0] == 200)
    tasks.add.send(1)
    wait_until(lambda: ended(url) == {("completed",): 5, ("failed",): 1})
    assert get(f"{url}/nothing")[0] == 404


def ended(url):
    return values(metrics(url)["horsies_runner_tasks"], "outcome")


@pytest.mark.slow
def test_a_taken_slot_is_shown_while_its_task_runs(worker, gate):
    url = url_of(worker("--metrics-port", "127.0.0.1:0"))
    tasks.hold.send("taken", str(gate))

    wait_until(lambda: list(values(metrics(url)["horsies_runner_threads_taken"], "worker").values()) == [1])
    gate.touch()
    wait_until(lambda: list(values(metrics(url)["horsies_runner_threads_taken"], "worker").values()) == [0])


@pytest.mark.slow
@pytest.mark.once
def test_with_a_token_in_the_settings_each_request_needs_it_except_for_public_endpoints(worker):
    url = url_of(worker("--metrics-port", "0", DJANGO_SETTINGS_MODULE="tests.extras.token_settings"))

    assert get(f"{url}/metrics")[0] == 401
    assert get(f"{url}/metrics", "wrong")[0] == 401
    assert get(f"{url}/health/ready")[0] == 401
    assert get(f"{url}/health/live")[0] == 200
    assert get(f"{url}/metrics", "a-token-of-the-tests")[0] == 200
    assert get(f"{url}/metrics", "a-token-of-the-tests", Host="worker:9100")[0] == 200


@pytest.mark.slow
@pytest.mark.once
def test_without_a_token_a_request_needs_an_allowed_host(worker):
    url = url_of(worker("--metrics-port", "0", DEBUG="0", ALLOWED_HOSTS="testserver"))

    for path in ("metrics", "health/live"):
        status, text = get(f"{url}/{path}", Host="attacker.example:9100")
        assert (status, text) == (400, "Allowed as Host: an IP address, localhost, and those of ALLOWED_HOSTS.\n")
        for host in ("10.1.2.3:9100", "[fd00::1]:9100", "localhost", "testserver:9100"):
            assert get(f"{url}/{path}", Host=host)[0] == 200


@pytest.mark.slow
@pytest.mark.once
def test_a_port_in_use_is_one_clear_line_and_exit_status_1(manage):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = manage("horsies_worker", HORSIES_WORKER_METRICS_PORT=str(port))

        assert process.wait() == 1
    assert f"--metrics-port: can't listen on 127.0.0.1:{port}: Address already in use." in process.output
    assert "Traceback" not in process.output


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--metrics-port", "many"], ["--metrics-port", "'many'", "from 1 to 65535"]),
        (["--metrics-port", "9100", "--drain"], ["--metrics-port", "--drain"]),
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_2_and_says_what_is_allowed(manage, arguments, expected):
    process = manage("horsies_worker", *arguments)

    assert process.wait() == 2
    assert all(text in process.output for text in expected), process.output


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("9100", "127.0.0.1:9100"),
        (9100, "127.0.0.1:9100"),
        ("0.0.0.0:9100", "0.0.0.0:9100"),
        ("[::1]:9100", "[::1]:9100"),
        ("host.internal:0", "host.internal:0"),
    ],
)
def test_an_address_is_a_port_of_this_machine_or_a_host_and_a_port(given, shown):
    assert str(parse_address("--metrics-port", given)) == shown


@pytest.mark.once
@pytest.mark.parametrize("given", ["", "x", ":9100", "70000", "-1", "1.5", "host:", "²"])
def test_a_wrong_address_is_named_with_what_is_allowed(given):
    with pytest.raises(ValueError, match="allowed: a port from 1 to 65535, or HOST:PORT") as raised:
        parse_address("HORSIES_WORKER_METRICS_PORT", given)

    assert "HORSIES_WORKER_METRICS_PORT" in str(raised.value)
    assert repr(given) in str(raised.value)
