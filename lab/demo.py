"""`make demo`: from nothing to an answer that both hosts generated, with the time of each stage."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable

from lab import hosts, lifecycle, settings
from lab.shell import LabError, inside, lock, replace, say

TIMES = settings.LAB / "demo.json"
QUESTION = "Who are you?"


def run_demo() -> int:
    """Build, up, deploy, ask."""
    from lab.__main__ import pyinfra_command

    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        started = time.monotonic()
        work()
        times[name] = round(time.monotonic() - started, 1)

    def deploy() -> None:
        if not (settings.CHECKOUT / "deploy.py").exists():
            raise LabError("deploy.py is not there: this checkout is not complete")
        code = subprocess.run(pyinfra_command(["-y"]), cwd=settings.SOURCE, check=False).returncode
        if code:
            raise LabError(f"the deploy ended with code {code}; what it said is above")

    with lock():
        timed("build", lifecycle.build)
        timed("up", lifecycle.up)
    timed("deploy", deploy)
    answer: dict[str, str] = {}
    timed("answer", lambda: answer.update(ask()))
    times["in all"] = round(sum(times.values()), 1)
    replace(TIMES, json.dumps(times, indent=1) + "\n")
    print()
    print(f"Asked the head's API ({answer['url']}): {QUESTION}")
    print(f"Answer: {answer['content']}")
    print(f"        (a real vLLM, tensor parallel over {' and '.join(h.hostname for h in settings.HOSTS.values())})")
    print()
    return print_times()


def ask() -> dict[str, str]:
    """One chat completion, from the control machine."""
    url = f"http://{settings.HEAD.address}:{api_port()}"
    models = json.loads(curl(f"{url}/v1/models"))
    body = json.dumps({
        "model": models["data"][0]["id"], "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 200,
    })  # fmt: skip
    said = json.loads(curl(f"{url}/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body))
    try:
        return {"url": url, "content": said["choices"][0]["message"]["content"]}
    except (KeyError, IndexError) as error:
        raise LabError(f"{url} gave no answer: {json.dumps(said)[:500]}") from error


def api_port() -> int:
    """The API's port, from what the deploy left on the head; the stack's own default without it."""
    said = subprocess.run(hosts.exec_command(settings.HEAD, "cat /etc/sparkpair/wanted/service.json"),
                          capture_output=True, text=True, check=False)  # fmt: skip
    return int(json.loads(said.stdout)["api"]["port"]) if said.returncode == 0 else 8000


def curl(*words: str) -> str:
    """One HTTP request from the control machine."""
    command = inside(settings.CONTROL_NAMESPACE, "curl", "-sS", "-m", "120", *words)
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode:
        say(f"see `python3 -m lab ssh {settings.HEAD.name} sparkpair status`")
        raise LabError(f"{words[0]}: {said.stderr.strip()}")
    return said.stdout


def print_times() -> int:
    """The times of the last demo."""
    if not TIMES.exists():
        raise LabError("no demo has finished here yet: `make demo`")
    for name, seconds in json.loads(TIMES.read_text()).items():
        print(f"{name:>8} {seconds:7.1f} s")
    return 0
