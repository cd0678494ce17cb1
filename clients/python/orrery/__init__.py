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

from orrery_api.api.execution_runs import list_run_outputs
from orrery_api.client import Client
from orrery_api.models import RunEvent, RunSummary


class Refused(Exception):
    """What the service refused, with its reasons."""

    def __init__(self, status: int, body: dict[str, Any], text: str = ""):
        super().__init__(str(body.get("error", text[:200])))
        self.status = status
        self.body = body
        self.code = str(body.get("code", ""))
        self.details: list[dict[str, str]] = body.get("details", [])


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


_KINDS = {401: NotAllowed, 403: NotAllowed, 404: NotFound, 409: Conflict, 412: Conflict, 423: Conflict}


def _refusal(answer: httpx.Response) -> Refused:
    answer.read()
    answer.close()
    try:
        body = dict(answer.json())
    except (ValueError, TypeError):
        # Something between here and the service has answered.
        body = {}
    status = answer.status_code
    other = Unavailable if status >= 500 or status == 429 else Unacceptable
    kind = NotBuilt if body.get("code") == "not_built" else _KINDS.get(status, other)
    return kind(status, body, answer.text)


_PATIENCE_SECONDS = 90.0
_ENDED = ("completed", "failed", "cancelled")
_RETRIED = (429, 502, 503, 504)
_DOCUMENTS = ("application/json", "application/yaml", "application/x-yaml", "text/yaml")


def _is_repeatable(request: httpx.Request) -> bool:
    """Whether a request has no body, or a document. Another body is a stream, which is read once."""
    headers = request.headers
    if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
        return True
    return headers.get("content-type", "").split(";")[0].strip().lower() in _DOCUMENTS


def _wait_seconds(attempt: int) -> float:
    return min(0.2 * 2 ** min(attempt - 1, 5), 5.0)


def _left(until: float) -> float:
    """The seconds that an answer is waited for before this time; raises TimeoutError after it."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError("the run has not ended within the given time")
    return min(_PATIENCE_SECONDS, left)


class _Retrying(httpx.Client):
    """Sends a request until it is answered, and raises what the service refuses.

    A POST gets an Idempotency-Key, so that it is done once. A body that is no document is sent once,
    without a key: the service compares it by a digest that nobody knows before it is read. A request
    that the service still answers under its key is no try, so that long work is waited for. The
    extension `until` of a request is the time, as of `time.monotonic`, to which it is sent again
    however often; then TimeoutError is raised.
    """

    def __init__(self, tries: int, **options: Any):
        # With a transport of its own it passes no token to a proxy that the environment names.
        super().__init__(transport=httpx.HTTPTransport(), timeout=_PATIENCE_SECONDS, **options)
        self.tries = tries

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        repeatable = _is_repeatable(request)
        if request.method == "POST" and repeatable and "idempotency-key" not in request.headers:
            request.headers["idempotency-key"] = str(uuid.uuid4())
        until = request.extensions.get("until")
        tries = 1 if not repeatable else self.tries if until is None else math.inf
        attempt = 1
        while True:
            wait = _wait_seconds(attempt)
            if until is not None:
                request.extensions["timeout"] = httpx.Timeout(_left(until)).as_dict()
            try:
                answer = super().send(request, **options)
                if answer.status_code < 300 or answer.status_code == 304:
                    return answer
                refused = _refusal(answer)
                after = answer.headers.get("retry-after", "")
                passing = answer.status_code == 409 and after != ""
                # Other conflicts that pass say what is in the way.
                in_flight = repeatable and passing and not refused.details and "state" not in refused.body
                again = passing or (answer.status_code in _RETRIED and not isinstance(refused, NotBuilt))
                if not again or (attempt >= tries and not in_flight):
                    raise refused
                if in_flight:
                    attempt -= 1
                if after.isdigit() and int(after) > 0:
                    wait = min(float(after), 60.0)
            except httpx.TransportError:
                if attempt >= tries:
                    raise
            attempt += 1
            time.sleep(wait if until is None else max(0.0, min(wait, until - time.monotonic())))


def pages(load: Callable[[int], Any]) -> Iterator[Any]:
    """Every item of a list; `load` reads one page of it, from 1 on.

    A list that is a plain array names its next page in the header `Link`: `load` reads it by
    `sync_detailed`.
    """
    page = 1
    while True:
        answer = load(page)
        listed = getattr(answer, "parsed", answer)
        if listed is answer and isinstance(listed, list):
            raise TypeError("the list is a plain array: read its pages by sync_detailed in place of sync")
        yield from listed if isinstance(listed, list) else listed.items
        if not ('rel="next"' in answer.headers.get("link", "") if isinstance(listed, list) else listed.has_next):
            return
        page += 1


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """The lines of a stream, which end with a line feed alone: texts may hold other line ends of Unicode."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines)


def _server_sent(lines: Iterator[str], until: float) -> Iterator[tuple[str, str]]:
    """The events of a `text/event-stream` that have an id; raises TimeoutError at the first line after the time."""
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        fields.setdefault(name, []).append(value.removeprefix(" "))
        if line == "":
            if "id" in fields and "data" in fields:
                yield fields["id"][-1], "\n".join(fields["data"])
            fields = {}
        _left(until)


class Runs:
    def __init__(self, http: httpx.Client):
        self._http = http

    def wait(self, run_id: str, timeout: float | None = None) -> RunSummary:
        """Waits until a run has ended, and gives its summary; without a poll each second.

        Goes on while the service is away. Raises TimeoutError after `timeout` seconds.
        """
        path = f"/execution-runs/{quote(run_id, safe='')}/summary/"
        until = math.inf if timeout is None else time.monotonic() + timeout
        headers: dict[str, str] = {}
        while True:
            answer = self._http.get(path, headers=headers, extensions={"until": until})
            if answer.status_code == 200:
                summary = RunSummary.from_dict(answer.json())
                if str(summary.run.status) in _ENDED:
                    return summary
            if "etag" in answer.headers:
                headers = {"prefer": "wait=30", "if-none-match": answer.headers["etag"]}

    def events(self, run_id: str, after: int | None = None, timeout: float | None = None) -> Iterator[RunEvent]:
        """Events of a run in order, until it has ended.

        A broken stream goes on where it ended, however long the service is away. Raises TimeoutError
        after `timeout` seconds.
        """
        path = f"/execution-runs/{quote(run_id, safe='')}/events/"
        until = math.inf if timeout is None else time.monotonic() + timeout
        headers = {"accept": "text/event-stream"} | ({} if after is None else {"last-event-id": str(after)})
        while True:
            try:
                with self._http.stream("GET", path, headers=headers, extensions={"until": until}) as answer:
                    if answer.status_code == 204:
                        return
                    for event_id, data in _server_sent(_lines(answer.iter_bytes()), until):
                        headers["last-event-id"] = event_id
                        yield RunEvent.from_dict(json.loads(data))
            except httpx.TransportError:
                pass
            time.sleep(0.1)


class Outputs:
    def __init__(self, api: Client, http: _Retrying):
        self._api = api
        self._http = http

    def download(self, run_id: str, activity_id: str, file: str, target: str | Path) -> None:
        """Downloads a file that an activity made; raises DigestMismatch, and then leaves nothing.

        One that breaks off begins anew, as often as requests are tried.
        """
        recorded = self._recorded(run_id, activity_id, file)
        run, activity = quote(run_id, safe=""), quote(activity_id, safe="")
        partial = Path(f"{target}.{uuid.uuid4()}.part")
        try:
            digest = self._save(f"/execution-runs/{run}/activities/{activity}/outputs/{quote(file)}", partial)
            if digest != recorded:
                raise DigestMismatch(f"{file}: sha256 is {digest}, recorded is {recorded}")
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def _save(self, path: str, target: Path) -> str:
        """Writes the bytes of a path to a file, and gives their SHA-256 in hexadecimal."""
        attempt = 1
        while True:
            digest = hashlib.sha256()
            with self._http.stream("GET", path, headers={"accept-encoding": "identity"}) as answer:
                try:
                    with target.open("wb") as out:
                        for chunk in answer.iter_bytes():
                            digest.update(chunk)
                            out.write(chunk)
                    return digest.hexdigest()
                except httpx.TransportError:
                    if attempt >= self._http.tries:
                        raise
            time.sleep(_wait_seconds(attempt))
            attempt += 1

    def _recorded(self, run_id: str, activity_id: str, file: str) -> str:
        for output in pages(lambda page: list_run_outputs.sync(run_id, activity_id, client=self._api, page=page)):
            if output.relative_path == file and output.checksum:
                return str(output.checksum).removeprefix("sha256:")
        error = f"activity {activity_id} of run {run_id} has no output {file} with a digest"
        raise NotFound(404, {"code": "missing", "error": error})


class Orrery:
    """A client of the service at `base_url`, with the prefix: `http://127.0.0.1:8080/api`.

    `tries` are those of a request that was not answered, or with 429, 502, 503 or 504.
    """

    pages = staticmethod(pages)

    def __init__(self, base_url: str, token: str | None = None, tries: int = 5):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._http = _Retrying(tries, base_url=base_url.rstrip("/"), headers=headers)
        self.api = Client(base_url=base_url.rstrip("/")).set_httpx_client(self._http)
        self.runs = Runs(self._http)
        self.outputs = Outputs(self.api, self._http)

    def __enter__(self) -> Orrery:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
