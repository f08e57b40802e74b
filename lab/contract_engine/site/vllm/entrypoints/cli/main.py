"""Stand-in (contract engine) for vLLM's command: the same parser as the program that serves."""

import sys

from vllm.entrypoints.cli.serve import ServeSubcommand, program


def main():
    """Parse the command line, and serve."""
    ServeSubcommand.cmd(program.parse(sys.argv[1:]))
