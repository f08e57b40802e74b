"""Sent into a throwaway container of the engine's image and run there by the image's own Python, 3.8 or later.

`watch` is process 1 of the container: it starts `answer` in a process of its own, so that a time limit or the kernel's
memory limit ends that one and word of it still comes, and prints one line. `answer` lets the engine's own command line
read each rank's arguments. It knows vLLM by few names, and where one of them is not there it says so: then nothing is
known, which is not the same as nothing being wrong.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from typing import Any, Callable, Iterator  # noqa: UP035  (Python 3.8)

REFUSALS_TOLD = 10
BOOTSTRAP = (
    "import json, sys\n"
    "ask = json.load(sys.stdin)\n"
    "space = {'__name__': 'opinion'}\n"
    "exec(compile(ask['program'], '<opinion>', 'exec'), space)\n"
    "space[sys.argv[1]](ask)\n"
)


def watch(ask: dict[str, Any]) -> None:
    """Ask in a child, and print what it said or what became of it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 would not hear it otherwise
    os.nice(19)
    began = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-c", ask["bootstrap"], "answer"],
        env={**os.environ, **ask["env"], **ask["fixed_env"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said: dict[str, Any] = {}
    try:
        output, errors = child.communicate(json.dumps(ask).encode(), timeout=ask["seconds"])
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        said["trouble"] = f"it gave no answer within {ask['seconds']} s"
    else:
        try:
            said.update(json.loads(output))
        except ValueError:
            code = child.returncode
            last = (errors.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
            how = f"it was killed (signal {-code})" if code < 0 else f"it ended with exit code {code}"
            said.update(trouble=f"{how}: {last}", signal=max(0, -code))
    said["missing"] = [row for row in ask["paths"] if not os.path.exists(row[1])]
    said["seconds"] = round(time.monotonic() - began, 1)
    said["peak_mib"] = _peak_mib()
    sys.stdout.write("\n" + ask["mark"] + json.dumps(said) + "\n")
    sys.stdout.flush()


def _peak_mib() -> int:
    """Most memory that the container held, or where the kernel does not count it, its largest process."""
    try:
        with open("/sys/fs/cgroup/memory.peak") as stream:
            return int(stream.read()) >> 20
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10


def answer(ask: dict[str, Any]) -> None:
    """Print what the engine says of each rank's arguments; whatever else is printed goes to the other stream."""
    out = os.dup(1)
    os.dup2(2, 1)
    said = _opinion(ask)
    with os.fdopen(out, "w") as stream:
        stream.write(json.dumps(said))
    os._exit(0)  # what the engine's modules do at the end of a process is not wanted here


class NotAsked(Exception):
    """The engine of this image cannot be asked."""


class Refused(Exception):
    """The engine does not take the arguments. `flags` are those that its message is about."""

    def __init__(self, message: str, flags: list[str], parsing: bool = False) -> None:
        super().__init__(message)
        self.flags = flags
        self.parsing = parsing


def _opinion(ask: dict[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"engine": "", "ranks": [], "variables": [], "unsure": []}
    try:
        said["variables"] = _variables(ask["variables"], said["unsure"])
        engine = _Engine(said["unsure"])
        said["engine"] = engine.version
        # What it refuses without any argument is not the arguments' fault: there is no GPU here.
        try:
            engine.read(ask["ranks"][0][:1], ask["weights"])
        except Refused as refused:
            raise NotAsked(f"it does not even take the model alone: {refused}") from None
        said["ranks"] = [_rank(engine, groups, ask["weights"]) for groups in ask["ranks"]]
    except NotAsked as reason:
        said["trouble"] = str(reason)
    return said


def _rank(engine: _Engine, groups: list[list[str]], weights: bool) -> list[list[Any]]:
    """All that is refused, as far as it can be told apart: a flag whose value cannot be read is left out, and the rest
    read again."""
    found: list[list[Any]] = []
    while len(found) < REFUSALS_TOLD:
        try:
            engine.read(groups, weights)
        except Refused as refused:
            if found and not refused.parsing:
                break  # may follow from what was left out
            found.append([refused.flags, str(refused)])
            rest = [group for group in groups if group[0] not in refused.flags]
            if not refused.parsing or len(rest) == len(groups):
                break
            groups = rest
            continue
        break
    return found


def _variables(names: list[str], unsure: list[str]) -> list[list[str]]:
    """Variables whose value the engine's own reader refuses: [[name, message]]."""
    try:
        readers = importlib.import_module("vllm.envs").environment_variables
    except Exception as error:
        unsure.append(f"its variables: {_brief(error)}")
        return []
    refused = []
    for name in names:
        try:
            readers.get(name, str)()
        except ValueError as error:
            refused.append([name, _brief(error, False)])
        except Exception as error:
            unsure.append(f"the variable {name}: {_brief(error)}")
    return refused


class _Engine:
    """vLLM's command line, without what it would start."""

    def __init__(self, unsure: list[str]) -> None:
        self._unsure = unsure
        self._parsed: list[Any] = []
        try:
            self._main = importlib.import_module("vllm.entrypoints.cli.main").main
            self._serve = importlib.import_module("vllm.entrypoints.cli.serve")
            command = self._serve.ServeSubcommand
            if not callable(command.cmd):
                raise NotAsked("the image's vllm cannot be asked (its command cannot be called)")
        except NotAsked:
            raise
        except Exception as error:
            raise NotAsked(f"the image's vllm cannot be asked ({_brief(error)})") from None
        command.cmd = staticmethod(self._parsed.append)
        self.version = str(getattr(sys.modules.get("vllm"), "__version__", ""))

    def read(self, groups: list[list[str]], weights: bool) -> None:
        """Parse, then check what has been parsed as far as the engine can before it starts. Raises Refused."""
        parsed = self._parse(groups)
        flags = [group[0] for group in groups[1:]]
        for name, check in self._checks(parsed, weights):
            try:
                with contextlib.redirect_stderr(io.StringIO()):
                    check(parsed)
            except (Exception, SystemExit) as error:
                if _is_refusal(error):
                    raise Refused(_brief(error, False), _mentioned(str(error), flags)) from None
                self._doubt(f"{name}: {_brief(error)}")

    def _doubt(self, text: str) -> None:
        if text not in self._unsure:
            self._unsure.append(text)

    def _parse(self, groups: list[list[str]]) -> Any:
        self._parsed.clear()
        sys.argv = [word for group in groups for word in group]
        printed = io.StringIO()
        flags = [group[0] for group in groups[1:]]
        try:
            with contextlib.redirect_stderr(printed):
                self._main()
        except SystemExit:
            text = printed.getvalue()
            message = _line(text.partition(" error: ")[2])
            if not message:
                raise NotAsked(f"its command line ended: {_line(text)[-200:]}") from None
            raise Refused(message, _named(message, flags), parsing=True) from None
        except Exception as error:
            if _is_refusal(error):
                raise Refused(_brief(error, False), _mentioned(str(error), flags)) from None
            raise NotAsked(f"its command line broke: {_brief(error)}") from None
        if not self._parsed:
            raise NotAsked("its command line read the arguments and did not come to serve")
        parsed = self._parsed[-1]
        if getattr(parsed, "model_tag", None) is not None:
            parsed.model = parsed.model_tag
        return parsed

    def _checks(self, parsed: Any, weights: bool) -> Iterator[tuple[str, Callable[[Any], object]]]:
        """What the engine checks before it starts a process, where this version has it."""
        serve = self._serve
        setup = getattr(serve, "setup_server", None) or getattr(serve, "run_server", None)
        home = sys.modules.get(getattr(setup, "__module__", ""), serve)
        check = getattr(home, "validate_api_server_args", None)
        has_api = not getattr(parsed, "headless", False)
        if check is None:
            self._doubt("names of parsers: this version has no check that can be asked")
        elif has_api:
            yield "names of parsers", check
        if has_api and getattr(parsed, "reasoning_parser", None) and hasattr(serve, "ReasoningParserManager"):
            find = serve.ReasoningParserManager.get_reasoning_parser  # the engine itself looks at the first use only
            yield "the reasoning parser", lambda args: find(args.reasoning_parser)
        if not weights:
            self._doubt("what depends on the model: the weights are not on that node yet")
            return
        try:
            arguments = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
        except Exception as error:
            self._doubt(f"the engine's configuration: {_brief(error)}")
            return
        yield "the engine's configuration", arguments.from_cli_args


def _named(message: str, flags: list[str]) -> list[str]:
    """The flags that a message of the parser names; a flag may have been abbreviated."""
    subject = re.match(r"argument ([^:]+):", message)
    words = re.findall(r"--?[A-Za-z][\w-]*", subject.group(1) if subject else message)
    words += [word.replace("_", "-") for word in words]
    return [flag for flag in flags if flag in words or (subject and any(word.startswith(flag + "-") for word in words))]


def _mentioned(message: str, flags: list[str]) -> list[str]:
    """The flags that a message speaks of, as --a-flag, a_flag or "A flag"."""
    found = []
    for flag in flags:
        name = flag.lstrip("-")
        forms = {name, name.replace("-", "_"), name.replace("-", " ")} if "-" in name else {flag}
        words = "|".join(re.escape(form) for form in sorted(forms))
        if re.search(rf"(?<![\w-])(--)?({words})(?![\w-])", message, re.IGNORECASE):
            found.append(flag)
    return found


def _is_refusal(error: BaseException) -> bool:
    """Whether an exception is about what was asked for, rather than about where it was asked."""
    of_the_engine = type(error).__module__.partition(".")[0] == "vllm"
    return of_the_engine or isinstance(error, (ValueError, KeyError, TypeError))


def _brief(error: BaseException, named: bool = True) -> str:
    """An exception on one line."""
    line = _line(str(error.args[0] if isinstance(error, KeyError) and error.args else error))
    return f"{type(error).__name__}: {line}" if named or not line else line


def _line(text: str) -> str:
    """A message on one line, without the addresses of objects, which differ each time."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()))[:1200]
