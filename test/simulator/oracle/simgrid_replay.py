#!/usr/bin/python3
"""Replays a plan in SimGrid: the documents of an execution request as JSON on stdin, times as JSON on stdout.

in:  {"workflow": {"activities", "dependencies", "dataDependencies"}, "plan": {"assignments"}, "resources": [...],
      "networkTopology": {"links"} or null, "networkModel": "contention-free" | "max-min" | "by-policy" | "lv08" | "cm02"}
out: {"makespanSeconds", "tasks": {id: [start, finish]}, "transfers": {"producer>consumer": finish}}

Written from the API's documents alone and shares nothing with the service. One actor drives everything: tasks are points in time,
flows are Comm.sendto_async. Each route has its own pair of end points, because the fastest route depends on the size and SimGrid
knows one route per pair. Python 3.32 has no activity dependencies.
"""
import heapq
import json
import math
import sys

from simgrid import Actor, Comm, Engine, Link, LinkInRoute, NetZone, this_actor

# optim:Full is the reference (the default differs by 2e-5); precisions below what is compared.
CONFIGURATION = ["--cfg=network/optim:Full", "--cfg=surf/precision:1e-9", "--cfg=maxmin/precision:1e-9", "--log=root.thres:error"]
MODELS = {
    "lv08": ["--cfg=network/model:LV08"],
    "cm02": ["--cfg=network/model:CM02"],
}
EXACT = ["--cfg=network/model:CM02", "--cfg=network/TCP-gamma:0", "--cfg=network/crosstraffic:0"]


def directed(links):
    """Hops by source: (link number, target, travelled forwards)."""
    hops = {}
    for number, link in enumerate(links):
        hops.setdefault(link["sourceResourceId"], []).append((number, link["targetResourceId"], True))
        if link.get("bidirectional"):
            hops.setdefault(link["targetResourceId"], []).append((number, link["sourceResourceId"], False))
    return hops


def latencies(links, hops, source, narrowest):
    """Least latency to every resource over links of at least this bandwidth, with the way."""
    best = {}
    queue = [(0.0, 0, (), source, ())]
    while queue:
        latency, count, numbers, at, way = heapq.heappop(queue)
        if at in best:
            continue
        best[at] = (latency, way)
        for number, target, forward in hops.get(at, []):
            if links[number]["bandwidthBitsPerSecond"] >= narrowest and target not in best:
                step = latency + links[number].get("latencySeconds", 0)
                heapq.heappush(queue, (step, count + 1, numbers + (number,), target, way + ((number, forward),)))
    return best


class Routes:
    """Fastest way for a size, by trying every bandwidth as the bottleneck."""

    def __init__(self, links):
        self.links = links
        self.hops = directed(links)
        self.widths = sorted({link["bandwidthBitsPerSecond"] for link in links})
        self.tables = {}

    def find(self, source, target, size):
        best = None
        for width in self.widths:
            key = (source, width)
            if key not in self.tables:
                self.tables[key] = latencies(self.links, self.hops, source, width)
            found = self.tables[key].get(target)
            if found is None:
                continue
            latency, way = found
            bottleneck = min(self.links[number]["bandwidthBitsPerSecond"] for number, _ in way)
            seconds = latency + size * 8 / bottleneck
            if best is None or seconds < best[0] - 1e-12:
                best = (seconds, way)
        if best is None:
            raise SystemExit(f"no route from {source} to {target}")
        return best[1]


def runtime(activity, assignment, resource):
    speedup = resource.get("computeSpeedup") or 1
    base = (activity.get("metadata") or {}).get("baseRuntimeSeconds")
    if base is not None:
        return base / speedup
    if assignment.get("predictedRuntimeSeconds") is not None:
        return assignment["predictedRuntimeSeconds"]
    return activity["simulation"]["durationSeconds"] / speedup


def lanes(assignment):
    cores = (assignment.get("metadata") or {}).get("coreIds") or [assignment.get("coreId", "")]
    return [(assignment["resourceId"], core, assignment.get("slotId", "")) for core in cores]


def main():
    request = json.load(sys.stdin)
    model = request["networkModel"]
    engine = Engine(["replay", *CONFIGURATION, *MODELS.get(model, EXACT)])
    resources = {resource["id"]: resource for resource in request["resources"]}
    activities = {activity["id"]: activity for activity in request["workflow"]["activities"]}
    assignments = {assignment["activityId"]: assignment for assignment in request["plan"]["assignments"]}
    topology = request.get("networkTopology")
    links = topology["links"] if topology else []

    sizes = {}
    for data in request["workflow"]["dataDependencies"]:
        pair = (data["producerActivityId"], data["consumerActivityId"])
        sizes[pair] = sizes.get(pair, 0) + data["sizeBytes"]
    edges = {(each["dependsOnActivityId"], each["activityId"]) for each in request["workflow"]["dependencies"]} | set(sizes)

    by_lane = {}
    for activity, assignment in assignments.items():
        for lane in lanes(assignment):
            by_lane.setdefault(lane, []).append((assignment["orderOnResource"], activity))
    first, waits = set(), []
    for members in by_lane.values():
        members.sort()
        first.add(members[0][1])
        waits += [(a, b) for (_, a), (_, b) in zip(members, members[1:])]

    # Platform: every route between two resources becomes a pair of hosts joined by the links it takes.
    zone = NetZone.create_full_zone("zone")
    real = {}

    def link_of(number, forward, route_name):
        link = links[number]
        policy = link.get("sharingPolicy") or "shared"
        shared = model == "max-min" or (model != "contention-free" and policy not in ("independent", "fatpipe"))
        split = (link.get("metadata") or {}).get("duplex") == "split"
        # A link that is not shared is one link per route: SimGrid lets flows of different weight slow each other on a common FATPIPE.
        key = (number, forward if split else True, "" if shared else route_name)
        if key not in real:
            made = zone.create_link("-".join(map(str, key)), link["bandwidthBitsPerSecond"] / 8)
            made.set_latency(link.get("latencySeconds", 0))
            made.set_sharing_policy(Link.SharingPolicy.SHARED if shared else Link.SharingPolicy.FATPIPE, None)
            real[key] = made.seal()
        return real[key]

    routes = Routes(links)
    ends, flows = {}, {}
    for producer, consumer in sorted(edges):
        size = sizes.get((producer, consumer), 0)
        source, target = assignments[producer]["resourceId"], assignments[consumer]["resourceId"]
        if topology is None or size == 0 or source == target:
            continue
        way = routes.find(source, target, size)
        flows[producer, consumer] = (way, size)
        if way in ends:
            continue
        name = f"route{len(ends)}"
        ends[way] = tuple(zone.create_host(f"{name}-{end}", 1e9) for end in ("from", "to"))
        back = routes.find(target, source, size) if model in ("lv08", "cm02") else tuple((n, not f) for n, f in reversed(way))
        here, there = (host.netpoint for host in ends[way])
        zone.add_route(here, there, None, None, [LinkInRoute(link_of(n, f, name)) for n, f in way], False)
        zone.add_route(there, here, None, None, [LinkInRoute(link_of(n, f, name)) for n, f in back], False)
    driver = zone.create_host("driver", 1e9)
    zone.seal()

    waiting = {activity: 0 for activity in activities}
    after = {activity: [] for activity in activities}
    for producer, consumer in sorted(edges) + waits:
        waiting[consumer] += 1
    for producer, consumer in sorted(edges):
        after[producer].append((consumer, (producer, consumer) in flows))
    for earlier, later in waits:
        after[earlier].append((later, False))

    times, arrivals = {}, {}

    def drive():
        ending = []
        comms, carried = [], []

        def start(activity):
            assignment = assignments[activity]
            resource = resources[assignment["resourceId"]]
            boot = resource.get("bootOverheadSeconds", 0) if activity in first else 0
            seconds = boot + resource.get("containerOverheadSeconds", 0) + runtime(activities[activity], assignment, resource)
            times[activity] = [Engine.clock, Engine.clock + seconds]
            heapq.heappush(ending, (Engine.clock + seconds, activity))

        def release(activity):
            waiting[activity] -= 1
            if waiting[activity] == 0:
                start(activity)

        for activity in sorted(activities):
            if waiting[activity] == 0:
                start(activity)
        while ending or comms:
            while ending and ending[0][0] <= Engine.clock + 1e-12 * max(1, Engine.clock):
                _, activity = heapq.heappop(ending)
                for consumer, flows_to in after[activity]:
                    if flows_to:
                        way, size = flows[activity, consumer]
                        comms.append(Comm.sendto_async(ends[way][0], ends[way][1], size))
                        carried.append((activity, consumer))
                    else:
                        release(consumer)
            if not comms:
                if ending:
                    this_actor.sleep_for(ending[0][0] - Engine.clock)
                continue
            left = ending[0][0] - Engine.clock if ending else math.inf
            if left <= 0:
                continue
            done = Comm.wait_any(comms) if left == math.inf else Comm.wait_any_for(comms, left)
            if done >= 0:
                pair = carried.pop(done)
                comms.pop(done)
                arrivals[">".join(pair)] = Engine.clock
                release(pair[1])

    Actor.create("driver", driver, drive)
    engine.run()
    if len(times) < len(activities):
        raise SystemExit(f"{len(activities) - len(times)} activities never started")
    makespan = max(finish for _, finish in times.values()) - min(start for start, _ in times.values())
    json.dump({"makespanSeconds": makespan, "tasks": times, "transfers": arrivals}, sys.stdout)


if __name__ == "__main__":
    main()
