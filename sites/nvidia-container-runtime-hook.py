#!/usr/bin/python3
"""NVIDIA's prestart hook for a machine without its cards: gives a container the nodes /dev/nvidia<N> that this machine has, as NVIDIA_VISIBLE_DEVICES asks."""
import json
import os
import subprocess
import sys

state = json.load(sys.stdin)
with open(os.path.join(state["bundle"], "config.json")) as file:
    config = json.load(file)
variables = dict(variable.split("=", 1) for variable in config["process"]["env"])
wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "void")
for index in [] if wanted in ("", "none", "void") else wanted.split(","):
    device = "/dev/nvidia" + index
    if not os.path.exists(device):
        sys.exit(f"nvidia-container-cli: device error: {index}: unknown device")
    enter = ["nsenter", "--target", str(state["pid"]), "--mount", "/bin/sh", "-c", 'touch "$1" && mount --bind "$2" "$1"', "sh"]
    subprocess.run([*enter, config["root"]["path"] + device, device], check=True)
