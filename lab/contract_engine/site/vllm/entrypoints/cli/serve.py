"""Stand-in (contract engine) for `vllm serve`: its parser and what it checks before it starts."""

import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader

PROGRAM = os.environ.get("CONTRACT_PROGRAM", "/usr/local/bin/vllm")
PARSERS = ("glm45", "glm47")


def _load():
    loader = SourceFileLoader("contract_vllm", PROGRAM)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("contract_vllm", loader))
    loader.exec_module(module)
    return module


program = _load()


class ServeSubcommand:
    """The subcommand, as far as one may look for it."""

    name = "serve"

    @staticmethod
    def cmd(args):
        """Become the program that serves."""
        del args
        os.execv(PROGRAM, ["vllm", *sys.argv[1:]])


class ReasoningParserManager:
    """The reasoning parsers that the lab's model needs."""

    @staticmethod
    def get_reasoning_parser(name):
        """One of them."""
        if name not in PARSERS:
            raise KeyError(f"Reasoning parser '{name}' not found. Available parsers: {', '.join(PARSERS)}")
        return name


def validate_api_server_args(args):
    """The tool parser's name."""
    if args.enable_auto_tool_choice and args.tool_call_parser not in PARSERS:
        raise KeyError(f"invalid tool call parser: {args.tool_call_parser} (chose from {{ {','.join(PARSERS)} }})")


def setup_server(args):
    """Where the engine checks names; it serves nothing here."""
    validate_api_server_args(args)
