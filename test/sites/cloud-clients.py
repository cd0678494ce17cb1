"""What Google's own client makes of the site's Compute Engine: a JSON document for the test."""

import json
import sys

from google.api_core import exceptions
from google.cloud import compute_v1
from google.oauth2 import service_account

given = json.load(sys.stdin)
credentials = service_account.Credentials.from_service_account_info(
    {**given["credential"], "token_uri": f"{given['endpoint']}/token"},
    scopes=["https://www.googleapis.com/auth/compute"],
)
options = {"api_endpoint": given["endpoint"]}
project, zone = given["credential"]["project_id"], given["zone"]
instances = compute_v1.InstancesClient(credentials=credentials, client_options=options)
operations = compute_v1.ZoneOperationsClient(credentials=credentials, client_options=options)
place = {"project": project, "zone": zone}


def settle(operation):
    """Waits for an operation, by both calls that the service has for that."""
    operations.wait(operation=operation.name, **place)
    return operations.get(operation=operation.name, **place).status.name


def wanted(name):
    image = "projects/debian-cloud/global/images/family/debian-12"
    parameters = compute_v1.AttachedDiskInitializeParams(source_image=image)
    return compute_v1.Instance(
        name=name,
        machine_type=f"zones/{zone}/machineTypes/e2-standard-2",
        labels={"of": "client"},
        disks=[compute_v1.AttachedDisk(boot=True, initialize_params=parameters)],
        network_interfaces=[compute_v1.NetworkInterface()],
    )


def insert(name, request_id):
    request = compute_v1.InsertInstanceRequest(
        instance_resource=wanted(name), request_id=request_id, **place
    )
    return settle(instances.insert_unary(request=request))


def refusal(work):
    try:
        work()
        return "none"
    except exceptions.GoogleAPICallError as error:
        return f"{type(error).__name__} {error.message}"


def names(**more):
    request = compute_v1.ListInstancesRequest(**place, **more)
    return sorted(one.name for one in instances.list(request=request))


def everywhere():
    request = compute_v1.AggregatedListInstancesRequest(project=project, filter="labels.of=client")
    return sorted(one.name for _, some in instances.aggregated_list(request=request) for one in some.instances)


ids = [f"00000000-0000-4000-8000-00000000000{n}" for n in (1, 2, 3)]
found = {"inserted": [insert("one", ids[0]), insert("two", ids[1]), insert("one", ids[0])]}
found["taken"] = refusal(lambda: insert("one", ids[2]))
found["form"] = refusal(lambda: insert("Upper", None))
found["absent"] = refusal(lambda: instances.get(instance="none", **place))
found["listed"] = [names(), names(max_results=1), everywhere()]
one = instances.get(instance="one", **place)
found["one"] = [one.name, dict(one.labels), one.zone.rsplit("/", 1)[-1]]
found["deleted"] = settle(instances.delete_unary(instance="one", **place))
found["left"] = names()
json.dump(found, sys.stdout)
