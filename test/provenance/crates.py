"""Judges exported runs with programs of others; prints what they found as JSON.

crates.py FOLDER CONTEXT, where FOLDER holds a folder with a crate for each run, and beside it
RUN.prov.json; CONTEXT is the RO-Crate context, which the validator would otherwise fetch.
"""

import io
import json
import os
import subprocess
import sys

import prov.model
import rdflib
import requests
import urllib3
from requests.adapters import BaseAdapter
from requests_cache import CachedSession

folder, context = sys.argv[1], sys.argv[2]
with open(context, "rb") as file:
    context_bytes = file.read()
cache = os.path.join(folder, "http")


class Local(BaseAdapter):
    """Answers every request with the context."""

    def send(self, request, **_):
        answer = requests.Response()
        answer.status_code, answer.url, answer.request, answer.reason = 200, request.url, request, "OK"
        answer.headers["Content-Type"] = "application/ld+json"
        answer.raw = urllib3.HTTPResponse(
            body=io.BytesIO(context_bytes),
            status=200,
            headers=dict(answer.headers),
            preload_content=False,
            request_url=request.url,
            request_method="GET",
        )
        return answer

    def close(self):
        pass


session = CachedSession(cache_name=cache, backend="sqlite", expire_after=-1)
session.mount("https://", Local())
for accept in (
    None,
    "application/ld+json, application/json",
    "application/ld+json",
    "application/ld+json, application/json;p=0.9, */*;q=0.1",
):
    session.get("https://w3id.org/ro/crate/1.1/context", headers={} if accept is None else {"Accept": accept})

SCHEMA = "http://schema.org/"
TERMS = "https://w3id.org/ro/terms/workflow-run#"
# The questions of the profile (https://w3id.org/ro/wfrun/provenance/0.5): image, duration, inputs.
QUESTIONS = {
    "images": f"""SELECT DISTINCT ?action ?image WHERE {{
        ?action a <{SCHEMA}CreateAction> ; <{TERMS}containerImage> ?i . ?i <{SCHEMA}name> ?image }}""",
    "durations": f"""SELECT ?action ?start ?end WHERE {{
        ?action a <{SCHEMA}CreateAction> ; <{SCHEMA}startTime> ?start ; <{SCHEMA}endTime> ?end }}""",
    "inputs": f"""SELECT ?action ?input WHERE {{
        ?action a <{SCHEMA}CreateAction> ; <{SCHEMA}object> ?input . ?input a <{SCHEMA}MediaObject> }}""",
}


def validated(crate):
    """Counts of the validator by severity, and the checks that failed."""
    program = os.path.join(os.path.dirname(sys.executable), "rocrate-validator")
    words = ["-y", "validate", "--offline", "--cache-path", cache, "-p", "provenance-run-crate"]
    done = subprocess.run(
        [program, *words, "-l", "recommended", "-f", "json", crate], capture_output=True, text=True
    )
    # Behind the document the program may print a line for people.
    report, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    failed = {(issue["severity"], issue["check"]["identifier"]): issue for issue in report["issues"]}
    return {
        "checks": report["statistics"]["total_checks_by_severity"],
        "failed": [
            {"severity": severity, "check": check, "message": issue["message"]}
            for (severity, check), issue in sorted(failed.items())
        ],
    }


def asked(crate):
    """The profile's questions, answered from the metadata alone."""
    with open(os.path.join(crate, "ro-crate-metadata.json")) as file:
        metadata = json.load(file)
    # The context of RO-Crate from the file, the crate's own terms from the crate.
    metadata["@context"] = [json.loads(context_bytes)["@context"], *metadata["@context"][1:]]
    graph = rdflib.Graph()
    graph.parse(data=json.dumps(metadata), format="json-ld", base="http://crate.example/")
    return {name: [[str(cell) for cell in row] for row in graph.query(text)] for name, text in QUESTIONS.items()}


def read_back(path):
    """Numbers of records by type, as the package reads them, and whether they survive being written."""
    document = prov.model.ProvDocument.deserialize(path, format="json")
    again = prov.model.ProvDocument.deserialize(content=document.serialize(format="json"), format="json")
    counts = {}
    for record in document.get_records():
        name = str(record.get_type().localpart)
        counts[name] = counts.get(name, 0) + 1
    return {"records": counts, "same": document == again}


runs = sorted(name for name in os.listdir(folder) if os.path.isdir(os.path.join(folder, name)))
print(
    json.dumps(
        {
            run: {
                **validated(os.path.join(folder, run)),
                "answers": asked(os.path.join(folder, run)),
                "prov": read_back(os.path.join(folder, f"{run}.prov.json")),
            }
            for run in runs
        }
    )
)
