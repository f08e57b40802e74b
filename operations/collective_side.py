"""Sent into a container of the engine's image on every node at the same time, and run there by the image's own Python,
3.8 or later: all ranks add up one tensor. It knows torch by few names; whatever hangs, word of it comes, and in time.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import re
import threading
import time
from typing import Any

BOOTSTRAP = (
    "import json, sys\n"
    "ask = json.load(sys.stdin)\n"
    "space = {'__name__': 'collective'}\n"
    "exec(compile(ask['program'], '<collective>', 'exec'), space)\n"
    "space['run'](ask)\n"
)
NCCL_CONF = "/etc/nccl.conf"
NCCL_LOG = "/tmp/nccl.log"
LINES = 4


def run(ask: dict[str, Any]) -> None:
    """Take part, and print one line: what came of it, or in which stage it stood when its time was over."""
    out = os.dup(1)
    os.dup2(2, 1)  # whatever else is printed goes to the other stream
    said: dict[str, Any] = {"stage": "the import of torch", "settings": conf()}
    lock = threading.Lock()

    def tell(trouble: str) -> None:
        with lock:  # the first word is the one that counts
            said.update(trouble=trouble, nccl=log_of_nccl())
            os.write(out, ("\n" + ask["mark"] + json.dumps(said) + "\n").encode())
            os._exit(0)

    late = threading.Timer(ask["seconds"], lambda: tell(f"no end of {said['stage']} within {ask['seconds']} s"))
    late.daemon = True
    late.start()
    try:
        add_up(ask, said)
    except ImportError as error:
        said["lacking"] = f"{type(error).__name__}: {error}"[:200]
        tell("")
    except BaseException as error:
        last = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        tell(f"{said['stage']} failed: {last}")
    tell("")


def add_up(ask: dict[str, Any], said: dict[str, Any]) -> None:
    """Four bytes first, with which a collective was seen to freeze (field reports: RDMA-03), then a few MiB, timed."""
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET", NCCL_DEBUG_FILE=NCCL_LOG)
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")

    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    said["backend"] = "nccl" if on_gpu else "gloo"
    device = "cuda:0" if on_gpu else "cpu"
    said["stage"] = "the meeting of the ranks"
    dist.init_process_group(
        said["backend"], init_method=f"tcp://{ask['master']}:{ask['port']}", rank=ask["rank"],
        world_size=ask["ranks"], timeout=datetime.timedelta(seconds=ask["seconds"]),
    )  # fmt: skip
    said["stage"] = "the first all-reduce, of 4 bytes"
    one = torch.ones(1, dtype=torch.float32, device=device)
    dist.all_reduce(one)
    if one.item() != ask["ranks"]:
        raise ValueError(f"the sum of {ask['ranks']} ones is {one.item():g}")
    said["stage"] = f"the all-reduce of {ask['mib']} MiB"
    many = torch.ones(ask["mib"] * 2**18, dtype=torch.float32, device=device)
    dist.all_reduce(many)
    many.fill_(1)
    if on_gpu:
        torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(ask["times"]):
        dist.all_reduce(many)
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (time.monotonic() - began) / ask["times"]
    wanted = float(ask["ranks"] ** ask["times"])
    if many[0].item() != wanted or many[-1].item() != wanted:
        raise ValueError(f"the sum is {many[-1].item():g}, and {wanted:g} it should be")
    # Bus bandwidth, as nccl-tests counts it: what each rank sends, whatever their number.
    said["busbw"] = many.numel() * 4 * 2 * (ask["ranks"] - 1) / ask["ranks"] / seconds / 1e9


def conf(path: str = NCCL_CONF) -> dict[str, str]:
    """What the image sets for every NCCL in it; {} where it has no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = stream.read(65536).splitlines()
    except OSError:
        return {}
    pairs = [line.split("#")[0].partition("=") for line in lines]
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}


def log_of_nccl(path: str = NCCL_LOG) -> dict[str, Any]:
    """Over which transport NCCL says that it sends, and its last words."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(2**20)
    except OSError:
        return {"transport": "", "lines": []}
    return {"transport": transport(text), "lines": [line[-300:] for line in text.splitlines()[-LINES:]]}


def transport(text: str) -> str:
    """IB or Socket, by the word on each channel, else by that on the whole; "" where neither is there."""
    channels = re.findall(r"\bvia NET/(IB|Socket)", text)
    whole = re.findall(r"Using network (IB|Socket)|NET/(IB|Socket) : Using", text)
    found = channels or [one or other for one, other in whole]
    return "Socket" if "Socket" in found else found[0] if found else ""
