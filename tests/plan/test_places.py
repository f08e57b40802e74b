"""A file that pyinfra executes is no module's, and inspect does not search all modules for it again and again."""

from __future__ import annotations

import inspect
from pathlib import Path

from operations import run


def test_an_executed_file_is_known_and_a_module_stays_itself(tmp_path: Path) -> None:
    """Also the frames are still told with their file and line, by which pyinfra orders operations."""
    verb = tmp_path / "verb.py"
    verb.write_text("name()\nstack = inspect.stack()\n")
    names: dict[str, object] = {"name": run._name_places, "inspect": inspect}
    exec(compile(verb.read_text(), str(verb), "exec"), names)
    assert inspect.modulesbyfile[str(verb)] == ""  # type: ignore[attr-defined]
    stack = names["stack"]
    assert isinstance(stack, list)
    assert (stack[0].filename, stack[0].lineno, stack[0].code_context) == (str(verb), 2, ["stack = inspect.stack()\n"])
    assert inspect.getmodule(inspect.currentframe(), __file__) is not None
