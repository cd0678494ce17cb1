# Ansible's output as one JSON object a line: the beginning and the end of each task on each host.
import json
import time

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: orrery_events
type: stdout
short_description: one JSON object a line
description: One JSON object a line for the beginning and the end of each task on each host.
"""

# The service masks secrets before it cuts a text for people, so it gets more than they do.
LONGEST = 16000


def text(value):
    """The text as a list: as a whole, or its beginning and its end."""
    if value is None or value == "":
        return None
    shown = str(value)
    return [shown] if len(shown) <= 2 * LONGEST else [shown[:LONGEST], shown[-LONGEST:]]


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "orrery_events"

    def __init__(self):
        super().__init__()
        self.began = {}

    def say(self, event, **facts):
        known = {name: value for name, value in facts.items() if value is not None}
        print(json.dumps({"event": event, **known}, default=str), flush=True)

    def end(self, event, result, **facts):
        host, task = result._host.get_name(), result._task
        found = result._result
        if found.get("_ansible_no_log"):
            said = "the task has no_log: its result is not shown" if event in ("failed", "unreachable") else None
        elif event in ("failed", "unreachable"):
            parts = [found.get("msg"), found.get("stderr") or found.get("module_stderr"), found.get("stdout")]
            for item in found.get("results") or []:
                if isinstance(item, dict) and (item.get("failed") or item.get("unreachable")):
                    parts += [item.get("msg"), item.get("stderr")]
                    break
            said = "\n".join(dict.fromkeys(str(part).strip() for part in parts if part))
        else:
            said = None
        began = self.began.pop((host, task._uuid), None)
        seconds = None if began is None else round(time.monotonic() - began, 3)
        self.say(event, host=host, task=text(task.get_name()), message=text(said), seconds=seconds, **facts)

    def v2_playbook_on_start(self, playbook):
        self.say("up")

    def v2_runner_on_start(self, host, task):
        self.began[(host.get_name(), task._uuid)] = time.monotonic()
        self.say("started", host=host.get_name(), task=text(task.get_name()))

    def v2_runner_on_ok(self, result):
        self.end("changed" if result._result.get("changed") else "ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self.end("failed", result, ignored=True if ignore_errors else None)

    def v2_runner_on_skipped(self, result):
        self.end("skipped", result)

    def v2_runner_on_unreachable(self, result):
        self.end("unreachable", result)

    def v2_playbook_on_no_hosts_matched(self):
        self.say("unmatched")

    def v2_playbook_on_stats(self, stats):
        self.say("stats", hosts={host: stats.summarize(host) for host in sorted(stats.processed)})
