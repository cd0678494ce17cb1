"""A client of the service.

`Orrery.api` is the generated client: `orrery_api.api.execution_runs.get_run.sync("id", client=orrery.api)`.
The rest is what takes more than one call, the same as in the client for TypeScript.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from orrery_api.client import Client
from orrery_api.models import RunEvent, RunSummary

__all__ = [
    "Conflict",
    "DigestMismatch",
    "NotAllowed",
    "NotBuilt",
    "NotFound",
    "Orrery",
    "Refused",
    "Unacceptable",
    "Unavailable",
]


class Refused(Exception):
    """What the service refused, with its reasons."""

    def __init__(self, status: int, code: str, message: str, details: list[dict[str, str]], body: dict[str, Any]):
        super().__init__(message)
        self.status = status
        self.code = code
        self.details = details
        self.body = body


class NotAllowed(Refused):
    """401, 403: the token or the peer."""


class NotFound(Refused):
    """404."""


class Conflict(Refused):
    """409, 412, 423: the state of the record."""


class Unacceptable(Refused):
    """400, 413, 415, 422: the request."""


class NotBuilt(Refused):
    """503 `not_built`: this version lacks it. Never asked again."""


class Unavailable(Refused):
    """5xx and 429 after the last try."""


class DigestMismatch(Exception):
    """What was downloaded is not what the service has recorded."""


def _kind_of(status: int, code: str) -> type[Refused]:
    if code == "not_built":
        return NotBuilt
    if status in (401, 403):
        return NotAllowed
    if status == 404:
        return NotFound
    if status in (409, 412, 423):
        return Conflict
    return Unavailable if status >= 500 or status == 429 else Unacceptable


def _refusal(answer: httpx.Response) -> Refused:
    text = answer.read().decode(errors="replace")
    try:
        body = json.loads(text)
    except ValueError:
        # Something between here and the service has answered.
        body = {}
    if not isinstance(body, dict):
        body = {}
    code = str(body.get("code", ""))
    message = str(body.get("error", text[:200]))
    return _kind_of(answer.status_code, code)(answer.status_code, code, message, body.get("details", []), body)


_PATIENCE_SECONDS = 90.0
_DOCUMENTS = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")


def _is_repeatable(request: httpx.Request) -> bool:
    """Whether a request has no body, or a document. Another body is a stream, which is read once."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return True
    return headers.get("content-type", "").split(";")[0].strip().lower() in _DOCUMENTS


def _wait_seconds(attempt: int) -> float:
    return min(0.2 * 2 ** min(attempt - 1, 5), 5.0)


class _Retrying(httpx.BaseTransport):
    """Sends a request until it is answered, and raises what the service refuses.

    A POST gets an Idempotency-Key, so that it is done once. A body that is no document is sent once,
    without a key: the service compares it by a digest that nobody knows before it is read. A request
    that the service still answers under its key is no try, so that long work is waited for. The
    extension `until` of a request is the time, as of `time.monotonic`, to which it is sent again
    however often; then TimeoutError is raised.
    """

    def __init__(self, tries: int):
        self._transport = httpx.HTTPTransport()
        self._tries = tries

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        repeatable = _is_repeatable(request)
        if request.method == "POST" and repeatable and "idempotency-key" not in request.headers:
            request.headers["idempotency-key"] = str(uuid.uuid4())
        until = request.extensions.get("until")
        attempt = 0
        while True:
            attempt += 1
            if until is not None:
                request.extensions["timeout"] = httpx.Timeout(_left(until)).as_dict()
            last = not repeatable or (until is None and attempt >= self._tries)
            wait = _wait_seconds(attempt)
            try:
                answer = self._transport.handle_request(request)
                if answer.status_code < 300 or answer.status_code == 304:
                    return answer
                refused = _refusal(answer)
                answer.close()
            except httpx.TransportError:
                if last:
                    raise
            else:
                after = answer.headers.get("retry-after", "")
                passing = answer.status_code == 409 and after != ""
                # Other conflicts that pass say what is in the way.
                in_flight = repeatable and passing and not refused.details and "state" not in refused.body
                again = answer.status_code in (429, 502, 503, 504) and not isinstance(refused, NotBuilt)
                if not (again or passing) or (last and not in_flight):
                    raise refused
                if in_flight:
                    attempt -= 1
                if after.isdigit() and int(after) > 0:
                    wait = min(float(after), 60.0)
            time.sleep(wait if until is None else max(0.0, min(wait, until - time.monotonic())))

    def close(self) -> None:
        self._transport.close()


def _segment(text: str) -> str:
    return quote(text, safe="")


class Orrery:
    """A client of the service at `base_url`, with the prefix: `http://127.0.0.1:8080/api`."""

    def __init__(self, base_url: str, token: str | None = None, tries: int = 5):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=base_url.rstrip("/"), headers=headers, transport=_Retrying(tries), timeout=_PATIENCE_SECONDS
        )
        self.api = Client(base_url=base_url.rstrip("/")).set_httpx_client(self._http)
        self.runs = Runs(self._http)
        self.outputs = Outputs(self._http, tries)

    def __enter__(self) -> Orrery:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    @staticmethod
    def pages(load: Callable[[int], Any]) -> Iterator[Any]:
        """Every item of a list; `load` reads one page of it, from 1 on.

        A list that is a plain array names its next page in the header `Link`: `load` reads it by
        `sync_detailed`.
        """
        page = 1
        while True:
            answer = load(page)
            listed = getattr(answer, "parsed", answer)
            if isinstance(listed, list):
                if listed is answer:
                    raise TypeError("the list is a plain array: read its pages by sync_detailed in place of sync")
                yield from listed
                more = 'rel="next"' in answer.headers.get("link", "")
            else:
                yield from listed.items
                more = listed.has_next
            if not more:
                return
            page += 1


def _until(timeout: float | None) -> float:
    return math.inf if timeout is None else time.monotonic() + timeout


def _left(until: float) -> float:
    """The seconds that an answer is waited for before this time; raises TimeoutError after it."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the run has not ended within the given time")
    return min(_PATIENCE_SECONDS, left)


def _before(until: float, lines: Iterator[str]) -> Iterator[str]:
    """The lines that come before this time; raises TimeoutError at the first after it."""
    for line in lines:
        yield line
        _left(until)


class Runs:
    def __init__(self, http: httpx.Client):
        self._http = http

    def wait(self, run_id: str, timeout: float | None = None) -> RunSummary:
        """Waits until a run has ended, and gives its summary; without a poll each second.

        Goes on while the service is away. Raises TimeoutError after `timeout` seconds.
        """
        headers: dict[str, str] = {}
        until = _until(timeout)
        while True:
            path = f"/execution-runs/{_segment(run_id)}/summary/"
            try:
                answer = self._http.get(path, headers=headers, extensions={"until": until})
            except httpx.TransportError:
                time.sleep(0.1)
                continue
            if "etag" in answer.headers:
                headers = {"prefer": "wait=30", "if-none-match": answer.headers["etag"]}
            if answer.status_code == 304:
                continue
            summary = RunSummary.from_dict(answer.json())
            if str(summary.run.status) in ("completed", "failed", "cancelled"):
                return summary

    def events(self, run_id: str, after: int | None = None, timeout: float | None = None) -> Iterator[RunEvent]:
        """Events of a run in order, until it has ended.

        A broken stream goes on where it ended, however long the service is away. Raises TimeoutError
        after `timeout` seconds.
        """
        last = None if after is None else str(after)
        until = _until(timeout)
        path = f"/execution-runs/{_segment(run_id)}/events/"
        while True:
            headers = {"accept": "text/event-stream"} | ({} if last is None else {"last-event-id": last})
            try:
                with self._http.stream("GET", path, headers=headers, extensions={"until": until}) as answer:
                    if answer.status_code == 204:
                        return
                    for event_id, data in _server_sent(_before(until, answer.iter_lines())):
                        last = event_id
                        yield RunEvent.from_dict(json.loads(data))
            except httpx.TransportError:
                pass
            time.sleep(0.1)


class Outputs:
    def __init__(self, http: httpx.Client, tries: int):
        self._http = http
        self._tries = tries

    def download(self, run_id: str, activity_id: str, file: str, target: str | Path) -> None:
        """Downloads a file that an activity made; raises DigestMismatch, and then leaves nothing.

        One that breaks off begins anew, as often as requests are tried.
        """
        folder = f"/execution-runs/{_segment(run_id)}/activities/{_segment(activity_id)}/outputs/"
        wanted = self._digest(folder, file)
        partial = Path(f"{target}.{uuid.uuid4()}.part")
        try:
            digest = self._save(folder + quote(file), partial)
            if digest != wanted:
                raise DigestMismatch(f"{file}: sha256 is {digest}, recorded is {wanted}")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def _save(self, path: str, target: Path) -> str:
        """Writes the bytes of a path to a file, and gives their SHA-256 in hexadecimal."""
        attempt = 0
        while True:
            attempt += 1
            digest = hashlib.sha256()
            with self._http.stream("GET", path, headers={"accept-encoding": "identity"}) as answer:
                try:
                    with target.open("wb") as out:
                        for chunk in answer.iter_bytes():
                            digest.update(chunk)
                            out.write(chunk)
                    return digest.hexdigest()
                except httpx.TransportError:
                    if attempt >= self._tries:
                        raise
            time.sleep(_wait_seconds(attempt))

    def _digest(self, folder: str, file: str) -> str:
        page = 1
        while True:
            answer = self._http.get(folder, params={"page": page}).json()
            for output in answer["items"]:
                if output["relativePath"] == file and "checksum" in output:
                    return str(output["checksum"]).removeprefix("sha256:")
            if not answer["hasNext"]:
                raise NotFound(404, "missing", f"no output {file} with a digest below {folder}", [], {})
            page += 1


def _server_sent(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The events of a `text/event-stream` that have an id."""
    event_id: str | None = None
    data: list[str] = []
    for line in lines:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if event_id is not None and data:
                yield event_id, "\n".join(data)
            event_id, data = None, []
        elif name == "id":
            event_id = value
        elif name == "data":
            data.append(value)
