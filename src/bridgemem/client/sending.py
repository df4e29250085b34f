"""BaseClient: requests to a running service, sent again where a moment later they may succeed."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from bridgemem.config import Positive, Size, check
from bridgemem.errors import BridgeMemError, DataError, NotFoundError, SettingsError

EVENT = ("subject", "relation", "object", "time")
AGAIN = (408, 429, 502, 503, 504)  # answered so, the same request may succeed a moment later
FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds; doubled from one try to the next


class ServiceError(BridgeMemError):
    """The service cannot be reached, or refuses a request. status: of HTTP, 0 where nothing was answered."""

    code = "service"

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class BaseClient:
    """Send requests to a service, with its token; `Client` has a method for each."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:8008",
        *,
        token: str | None = None,
        token_file: Path | str | None = None,
        timeout: float = 30.0,
        retries: int = 5,
    ) -> None:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SettingsError(f"{address!r} is not the address of a service; write it as http://127.0.0.1:8008.")
        if token is not None and token_file is not None:
            raise SettingsError("give the token or the file that holds it, not both.")
        check("timeout", timeout, Positive)
        check("retries", retries, Size)
        self.address, self.timeout, self.retries = address.rstrip("/"), timeout, retries
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._before = parts.path.rstrip("/")
        self._token = token if token_file is None else read_token(Path(token_file))

    def __repr__(self) -> str:
        return f"Client({self.address!r})"

    def get(self, path: str, **asked: Any) -> dict[str, Any]:
        """Send a GET request.

        Args:
            path: The address.
            **asked: Parameters of the query.

        Returns:
            The service's JSON answer.

        Example:
            >>> sorted(client.get("/v1/limits")) == sorted(client.limits())
            True
        """
        words = urlencode(given(asked))
        return self._answer("GET", f"{path}?{words}" if words else path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a POST request with a JSON body.

        Args:
            path: The address.
            body: What is sent.

        Returns:
            The service's JSON answer.

        Raises:
            DataError: The body cannot be written as JSON.

        Example:
            >>> asked = {"subject": data.entities[0], "relation": "consult", "top": 1}
            >>> len(client.post("/v1/forecast", asked)["candidates"])
            1
        """
        try:
            sent = json.dumps(body, allow_nan=False, default=str).encode()
        except ValueError as problem:
            raise DataError(f"the request cannot be written as JSON: {problem}.") from None
        return self._answer("POST", path, sent)

    def _answer(self, method: str, path: str, body: bytes | None) -> dict[str, Any]:
        """Send a request until it is answered, refused for good, or was sent as often as it may be."""
        for tried in range(self.retries + 1):
            last = tried == self.retries
            try:
                status, after, found = self._once(method, path, body)
            except (OSError, http.client.HTTPException) as problem:
                if last:
                    why = f"{_why(problem)}; check that it is running"
                    raise ServiceError(f"{self.address} cannot be reached: {why}.") from None
                after = None
            else:
                if status < 400:
                    return found
                if status not in AGAIN or last:
                    raise _refused(status, found)
            time.sleep(_wait(tried, after))
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, str | None, dict[str, Any]]:
        """Status, Retry-After and JSON of one answer; a connection of its own, so that threads may share a client."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        connection = kind(self._host, self._port, timeout=self.timeout)
        try:
            connection.request(method, self._before + path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        return answer.status, answer.headers.get("Retry-After"), found if isinstance(found, dict) else {}


def read_token(path: Path) -> str:
    """The token that clients send: the first line of a file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    except OSError as problem:
        raise SettingsError(
            f"{path} cannot be read: {problem.strerror}; write the token into a file, and name it."
        ) from None
    token = lines[0].strip() if lines else ""
    if not token or not token.isascii() or not token.isprintable():
        raise SettingsError(f"{path} does not begin with a token: write a line of ASCII letters and digits into it.")
    return token


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def _refused(status: int, found: Mapping[str, Any]) -> BridgeMemError:
    """The service's own sentence, as the error that the library itself would raise."""
    said = str(found.get("error") or f"the service answered with {status}.")
    kind = {404: NotFoundError, 422: DataError}.get(status)
    problem = ServiceError(said, status) if kind is None else kind(said)
    problem.suggestions = tuple(found.get("suggestions") or ())
    return problem


def _why(problem: Exception) -> str:
    return str(getattr(problem, "strerror", None) or problem or type(problem).__name__).rstrip(".")


def _wait(tried: int, after: str | None) -> float:
    """Seconds until the next try: what the service asks for, else doubled each time; spread, so that not all come at
    once."""
    asked = float(after) if after is not None and after.isdecimal() and len(after) < 6 else FIRST_WAIT * 2**tried
    return min(asked, LONGEST_WAIT) * random.uniform(1.0, 1.25)
