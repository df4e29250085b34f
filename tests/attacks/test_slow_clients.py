"""Clients that are slow on purpose: each loses its connection in time, and nobody else notices them."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the extra 'serve'")
pytest.importorskip("uvicorn", reason="needs the extra 'serve'")
pytest.importorskip("prometheus_client", reason="needs the extra 'serve'")

from bridgemem.cli.serve import listen
from bridgemem.forecasting.predictor import Predictor
from bridgemem.live.eventstore import EventStore
from bridgemem.live.forecasting import LiveForecaster
from bridgemem.service.app import create_app
from bridgemem.service.connections import MOST_HEADERS, make_server
from bridgemem.service.limits import SMALL_BODY, Limits
from fits import loaded

pytest_plugins = ("small_runs",)

PATIENCE = 60.0  # seconds until a test gives up; what is tested takes a fraction of one
SHORT, LONG = 0.4, 50.0  # timeouts of the service: one that passes within a test, and one that never does
BODY = json.dumps({"subject": "Arvan", "relation": "visit", "top": 1}).encode()
HEAD = b"POST /v1/forecast HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HALF_HEAD = HEAD + b"X-Padding: "
ASKED = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


Client = Callable[[int], bytes]


def with_length(length: int) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % length


@pytest.fixture(scope="module")
def live(recurrence_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveForecaster]:
    with EventStore(tmp_path_factory.mktemp("slow") / "events.duckdb") as store:
        yield LiveForecaster(loaded(recurrence_run), store)


@contextmanager
def serving(live: LiveForecaster, limits: Limits) -> Iterator[int]:
    """The port of the service under these limits, as `bridgemem serve` runs it."""
    with listen("127.0.0.1", 0) as place:
        # little is on its way at once, so that an answer waits for a client that does not read
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        server = make_server(create_app(live, limits=limits), limits)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]})
        thread.start()
        try:
            yield place.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a client kept the service from its end"


@pytest.fixture
def serve(live: LiveForecaster) -> Iterator[Callable[[Limits], int]]:
    with ExitStack() as stack:
        yield lambda limits: stack.enter_context(serving(live, limits))


@pytest.fixture
def connect() -> Iterator[Callable[..., socket.socket]]:
    """Connections that have sent something, closed before the service is."""
    with ExitStack() as stack:
        yield lambda *told: stack.enter_context(connected(*told))


def connected(port: int, sent: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    client = socket.socket()
    client.settimeout(PATIENCE)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    try:
        client.bind((source, 0))
    except OSError:
        pytest.skip(f"needs the loopback address {source}")
    client.connect(("127.0.0.1", port))
    client.sendall(sent)
    return client


def until_closed(client: socket.socket) -> bytes:
    """All that the service sends until it closes the connection."""
    parts = []
    try:
        while part := client.recv(1 << 16):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def answer(client: socket.socket) -> tuple[int, dict[str, Any]]:
    """Status and content of one answer; the connection stays open."""
    with client.makefile("rb") as lines:
        status, length = int(lines.readline().split()[1]), 0
        while (line := lines.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return status, json.loads(lines.read(length))


def drip(client: socket.socket, data: bytes, pause: float) -> None:
    """Send byte by byte until all is sent or the service has hung up."""
    try:
        for place in range(len(data)):
            client.sendall(data[place : place + 1])
            time.sleep(pause)
    except OSError:
        return


# --- clients that are given up --------------------------------------------------------------------------------------


def half_a_head(port: int) -> bytes:
    with connected(port, HALF_HEAD) as client:
        return until_closed(client)


def nothing(port: int) -> bytes:
    with connected(port) as client:
        return until_closed(client)


def dripped_head(port: int) -> bytes:
    return _dripped(port, HALF_HEAD)


def half_a_second_head(port: int) -> bytes:
    with connected(port, ASKED) as client:
        assert answer(client)[0] == 200
        client.sendall(HALF_HEAD)
        return until_closed(client)


def half_a_body(port: int) -> bytes:
    with connected(port, with_length(500) + BODY) as client:
        return until_closed(client)


def dripped_body(port: int) -> bytes:
    return _dripped(port, with_length(5000))


def dripped_body_over_the_limit(port: int) -> bytes:
    return _dripped(port, with_length(999_999_999))


def dripped_body_of_a_refused_method(port: int) -> bytes:
    return _dripped(port, with_length(5000).replace(b"/v1/forecast", b"/healthz"))


def unread_answer(port: int) -> bytes:
    with connected(port, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as client:
        client.recv(1, socket.MSG_PEEK)  # the answer is there, however long it took to make it
        time.sleep(3 * SHORT)
        return until_closed(client)


def _dripped(port: int, begin: bytes) -> bytes:
    """What is answered to a client that goes on byte by byte, until the service has hung up."""
    with connected(port, begin) as client:
        dripping = threading.Thread(target=drip, args=(client, b"x" * 4000, SHORT / 6))
        dripping.start()
        said = until_closed(client)
        dripping.join(PATIENCE)
        assert not dripping.is_alive()
        return said


GIVEN_UP = {
    half_a_head: b"HTTP/1.1 408 ",
    nothing: b"",
    dripped_head: b"HTTP/1.1 408 ",
    half_a_second_head: b"HTTP/1.1 408 ",
    half_a_body: b"HTTP/1.1 408 ",
    dripped_body: b"HTTP/1.1 408 ",
    dripped_body_over_the_limit: b"HTTP/1.1 413 ",
    dripped_body_of_a_refused_method: b"HTTP/1.1 405 ",
    unread_answer: b"HTTP/1.1 200 ",
}


@pytest.fixture(scope="module")
def given_up(live: LiveForecaster) -> Iterator[dict[Client, Future[bytes]]]:
    """What the service said to each until it hung up; they all come at once, which takes one timeout."""
    with serving(live, Limits(timeout=SHORT)) as port, ThreadPoolExecutor(len(GIVEN_UP)) as pool:
        yield {client: pool.submit(client, port) for client in GIVEN_UP}


@pytest.mark.parametrize("client", GIVEN_UP, ids=lambda client: client.__name__)
def test_the_connection_of_a_slow_client_is_closed(client: Client, given_up: dict[Client, Future[bytes]]) -> None:
    said = given_up[client].result(2 * PATIENCE)
    assert said.startswith(GIVEN_UP[client])
    assert bool(said) == bool(GIVEN_UP[client])


def test_one_that_is_late_is_told_so_in_the_shape_of_every_error(given_up: dict[Client, Future[bytes]]) -> None:
    for client, what in ((half_a_head, "the request's headers"), (half_a_body, "the request did")):
        head, _, content = given_up[client].result(2 * PATIENCE).partition(b"\r\n\r\n")
        assert b"connection: close" in head.lower()
        assert json.loads(content)["error"].startswith(what)


def test_an_answer_that_nobody_reads_is_not_kept(given_up: dict[Client, Future[bytes]]) -> None:
    head, _, content = given_up[unread_answer].result(2 * PATIENCE).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    assert len(content) < int(length[1])


# --- everyone else ---------------------------------------------------------------------------------------------------


def test_many_half_sent_headers_keep_nobody_waiting(serve: Any, connect: Any) -> None:
    port = serve(Limits(timeout=LONG, connections=30, per_client=20))
    slow = [connect(port, HALF_HEAD) for _ in range(60)]
    assert answer(connect(port, with_length(len(BODY)) + BODY))[0] == 200
    assert until_closed(slow[0]) == b""  # the first that came gave way


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (HALF_HEAD + b"x" * (3 * MOST_HEADERS), 431),  # one header without an end
        (HEAD + b"X-Padding: y\r\n" * (MOST_HEADERS // 8), 431),
        (b"GET /" + b"x" * (2 * MOST_HEADERS) + b" HTTP/1.1\r\n\r\n", 431),
        (b"NOTHING LIKE HTTP\r\n\r\n", 400),
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    ],
    ids=["endless-header", "many-headers", "long-line", "no-http", "two-lengths"],
)
def test_headers_without_an_end_and_what_is_no_http_are_refused_in_one_shape(
    serve: Any, connect: Any, sent: bytes, status: int
) -> None:
    port = serve(Limits(timeout=LONG))
    client = connect(port)
    with suppress(ConnectionError):  # it may hang up before all is sent
        client.sendall(sent)
    found = until_closed(client)
    assert found or status == 431  # nothing is read of an answer to a client that still sends
    if found:
        assert found.startswith(b"HTTP/1.1 %d " % status)
        assert set(json.loads(found.partition(b"\r\n\r\n")[2])) == {"error", "suggestions"}
    assert answer(connect(port, with_length(len(BODY)) + BODY))[0] == 200


def test_forty_slow_bodies_take_no_place_from_others(serve: Any, connect: Any) -> None:
    port = serve(Limits(timeout=LONG, concurrent=2))
    slow = [connect(port, with_length(len(BODY)) + BODY[:-1]) for _ in range(40)]
    for _ in range(3):
        assert answer(connect(port, with_length(len(BODY)) + BODY))[0] == 200
    for client in slow[:2]:  # and they are answered themselves, as soon as they are whole
        client.sendall(BODY[-1:])
        assert answer(client)[0] == 200


def test_large_bodies_that_wait_for_their_rest_take_bounded_memory(serve: Any, connect: Any) -> None:
    limits = Limits(timeout=LONG, body=4 * SMALL_BODY, concurrent=1)
    port = serve(limits)
    large = with_length(limits.body) + b" " * (3 * SMALL_BODY)
    both = [connect(port, large) for _ in range(2)]
    (refused,), _, _ = select.select(both, [], [], PATIENCE)  # there is room for one, whichever is quicker
    status, said = answer(refused)
    assert (status, said["error"].startswith("too many requests")) == (429, True)
    assert answer(connect(port, with_length(len(BODY)) + BODY))[0] == 200  # a small body always has room
    (first,) = set(both) - {refused}
    first.sendall(b" " * SMALL_BODY)
    assert answer(first)[0] == 422  # it was gathered to its end, and is no JSON


def test_an_upload_that_is_slow_but_steady_is_answered(serve: Any, connect: Any) -> None:
    client = connect(serve(Limits(timeout=LONG)), with_length(len(BODY)))
    drip(client, BODY, 0.005)
    assert answer(client)[0] == 200


# --- connections -----------------------------------------------------------------------------------------------------


def test_the_address_with_the_most_connections_gives_way_first(serve: Any, connect: Any) -> None:
    port = serve(Limits(timeout=LONG, connections=6, per_client=6))
    honest = connect(port, ASKED, "127.0.0.2")
    assert answer(honest)[0] == 200
    crowd = [connect(port, HALF_HEAD) for _ in range(12)]
    assert until_closed(crowd[0]) == b""
    honest.sendall(ASKED)  # its connection was kept, although it is the oldest of all
    assert answer(honest)[0] == 200


def test_a_request_in_work_is_never_given_up_for_a_new_connection(
    serve: Any, connect: Any, live: LiveForecaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, answers_of = threading.Event(), threading.Event(), Predictor.answers

    def slow(*args: Any, **named: Any) -> Any:
        begun.set()
        go_on.wait(PATIENCE)
        return answers_of(*args, **named)

    port = serve(Limits(timeout=SHORT, connections=2, per_client=2))
    while answer(connect(port, ASKED.replace(b"health", b"ready")))[0] != 200:
        time.sleep(0.02)  # making ready forecasts too
    monkeypatch.setattr(Predictor, "answers", slow)
    client = connect(port, with_length(len(BODY)) + BODY)
    assert begun.wait(PATIENCE)
    for _ in range(5):
        connect(port, HALF_HEAD)
    time.sleep(1.5 * SHORT)  # longer than a client may take; the service may take as long as it needs
    go_on.set()
    assert answer(client)[0] == 200
