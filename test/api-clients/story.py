"""Tells the demo's story with the client for Python; prints what it saw, as the one for TypeScript."""

import io
import json
import sys
import tempfile
import time
from pathlib import Path

from orrery import DigestMismatch, NotBuilt, NotFound, Orrery, Unacceptable
from orrery_api import models
from orrery_api.api.audit_events import list_audit_events
from orrery_api.api.environments import create_environment
from orrery_api.api.execution_runs import list_run_events, start_run
from orrery_api.api.execution_scopes import create_execution_scope
from orrery_api.api.instance import import_instance
from orrery_api.api.planning_sessions import (
    get_planning_session,
    list_candidates,
    select_candidate,
    start_planning_session,
)
from orrery_api.api.workflow_definitions import create_workflow
from orrery_api.types import File

base_url, documents_file, archive_file = sys.argv[1:]
documents = json.loads(Path(documents_file).read_text())
seen = {"refusals": []}
with Orrery(base_url) as orrery:
    api = orrery.api
    create_environment.sync(client=api, body=models.CreateEnvironmentBody.from_dict(documents["environment"]))
    scope = models.CreateExecutionScopeBody.from_dict(documents["scope"])
    create_execution_scope.sync(client=api, body=scope)
    form = models.CreateWorkflowBodyForm1.from_dict(documents["workflow"])
    workflow = create_workflow.sync(client=api, body=form)
    body = {"id": "py", "workflowVersionId": workflow.version.id, "executionScopeId": documents["scope"]["id"]}
    session = models.StartPlanningSessionBody.from_dict({**body, "algorithms": [{"id": "heft"}]})
    start_planning_session.sync(client=api, body=session)
    while (status := str(get_planning_session.sync("py", client=api).session.status)) != "completed":
        if status == "failed":
            raise SystemExit("planning failed")
        time.sleep(0.5)
    candidates = list_candidates.sync("py", client=api)
    first = getattr(candidates, "items", candidates)[0]
    plan = select_candidate.sync("py", first.id, client=api)
    run = models.StartRunBody.from_dict({"id": "py", "schedulePlanId": plan.id, "mode": "real"})
    start_run.sync(client=api, body=run)
    # Nothing answers for longer than a request is tried; the timeout ends both.
    away = Orrery(base_url + "/away", tries=1)

    def given(call):
        try:
            call()
            return "ended"
        except TimeoutError:
            return "timeout"

    seen["away"] = [
        given(lambda: away.runs.wait("py", timeout=2)),
        given(lambda: list(away.runs.events("py", timeout=2))),
    ]
    seen["status"] = str(orrery.runs.wait("py").run.status)
    seen["events"] = [event.sequence for event in orrery.runs.events("py")]
    seen["behind"] = [event.sequence for event in orrery.runs.events("py", after=2)]

    def load(page: int):
        return list_run_events.sync("py", client=api, page=page, page_size=2)

    seen["paged"] = [event.sequence for event in orrery.pages(load)]

    def audits(page: int):
        return list_audit_events.sync_detailed(client=api, page=page, page_size=2)

    seen["audited"] = [event.id for event in orrery.pages(audits)]
    busy = Orrery(base_url + "/in-flight", tries=2)
    seen["waited"] = create_execution_scope.sync(client=busy.api, body=scope).id
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "shout.txt"
        orrery.outputs.download("py", "shout", "shout.txt", target)
        seen["output"] = target.read_text()
        altered = Orrery(base_url + "/altered")
        try:
            altered.outputs.download("py", "shout", "shout.txt", Path(folder) / "second.txt")
        except DigestMismatch:
            seen["altered"] = ["DigestMismatch", [file.name for file in Path(folder).iterdir()]]

    def refused(kind, call):
        try:
            call()
        except kind as error:
            seen["refusals"].append([error.status, error.code])

    refused(NotFound, lambda: orrery.runs.wait("none"))
    refused(Unacceptable, lambda: orrery._http.post("/execution-scopes/", json={}))
    refused(NotBuilt, lambda: Orrery(base_url + "/not-built").runs.wait("py"))
    with open(archive_file, "rb") as archive:
        context = orrery._http.post("/build-contexts/", files={"context": ("context.tar.gz", archive)})
    seen["context"] = context.json()["sizeBytes"]
    payload = io.BytesIO(b"no archive")
    refused(Unacceptable, lambda: import_instance.sync(client=api, body=File(payload=payload)))
print(json.dumps(seen))
