#!/usr/bin/python3
"""runc for a root without CAP_SYS_RESOURCE: what a container asks for is lowered to what this process may give."""
import json
import os
import resource
import sys

arguments = sys.argv[1:]
if "create" in arguments or "run" in arguments:
    bundle = "."
    for i, argument in enumerate(arguments):
        if argument in ("--bundle", "-b"):
            bundle = arguments[i + 1]
        elif argument.startswith("--bundle="):
            bundle = argument.split("=", 1)[1]
    path = os.path.join(bundle, "config.json")
    with open(path) as file:
        config = json.load(file)
    process = config.get("process", {})
    with open("/proc/self/oom_score_adj") as file:
        lowest = int(file.read())
    if (process.get("oomScoreAdj") or 0) < lowest:
        process["oomScoreAdj"] = lowest
    for limit in process.get("rlimits") or []:
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY and limit["hard"] > hard:
            limit["hard"] = hard
            limit["soft"] = min(limit["soft"], hard)
    with open(path, "w") as file:
        json.dump(config, file)
os.execvp("runc", ["runc", *arguments])
