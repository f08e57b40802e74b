"""The kit's settings files: what bash would read, without bash; and what is refused, by line."""

# Messages stand here in one piece.
# ruff: noqa: E501

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spec import kit_env
from spec.kit_env import Form, KitFile, parse, read

TAKEN: list[tuple[str, dict[str, str]]] = [
    ("", {}),
    ("\n\n# nothing\n   # at all\n\t\n", {}),
    ("A=1", {"A": "1"}),
    ("A=1\nB=2\n", {"A": "1", "B": "2"}),
    ("A=1\r\nB=\r\n# c\r\nC='x'\r\n", {"A": "1", "B": "", "C": "x"}),
    ("\ufeffA=1\n", {"A": "1"}),
    ("  A=1", {"A": "1"}),
    ("A=", {"A": ""}),
    ("A=              # empty = the default", {"A": ""}),
    ("A=''", {"A": ""}),
    ('A=""', {"A": ""}),
    ("A=1 # c", {"A": "1"}),
    ("A=1#c", {"A": "1#c"}),
    ("A=#c", {"A": "#c"}),
    ("A=1\t# c", {"A": "1"}),
    ("A='1 # c' # d", {"A": "1 # c"}),
    ("A='a b'", {"A": "a b"}),
    ('A="a b"', {"A": "a b"}),
    ("A=a'b c'\"d e\"f", {"A": "ab cd ef"}),
    ("A='$HOME `x` \\ \"'", {"A": '$HOME `x` \\ "'}),
    ('A="a\\"b\\\\c\\$d\\`e\\f"', {"A": 'a"b\\c$d`e\\f'}),
    ("A=a\\ b\\#c\\$d", {"A": "a b#c$d"}),
    ("A=a$", {"A": "a$"}),
    ("A=a$/b", {"A": "a$/b"}),
    ('A="a$"', {"A": "a$"}),
    ("A=a=b==", {"A": "a=b=="}),
    ("A=x~y", {"A": "x~y"}),
    ("A=1\\\n2", {"A": "12"}),
    ("A=1 \\\n  B=2", {"A": "1", "B": "2"}),
    ('A="1\\\n2"', {"A": "12"}),
    ("A=1\\", {"A": "1\\"}),
    ("A=1 B=2 # c", {"A": "1", "B": "2"}),
    ("export A=1", {"A": "1"}),
    ("export A=1 B='2 3'", {"A": "1", "B": "2 3"}),
    ("A=1\nexport A", {"A": "1"}),
    ("export\tA=1", {"A": "1"}),
    ("A=1\nA=2\nA=", {"A": ""}),
    ("A=naïve", {"A": "naïve"}),
    ("A=~/m", {"A": "~/m"}),
    ("A=$HOME/m", {"A": "~/m"}),
    ("A=${HOME}/m/n", {"A": "~/m/n"}),
    ('A="$HOME/m n"', {"A": "~/m n"}),
    ('A="${HOME}"/m', {"A": "~/m"}),
    ("A=~/'m n'", {"A": "~/m n"}),
    (': "${A:=1}"', {"A": "1"}),
    (': "${A=}"', {"A": ""}),
    (': "${A=a b}"', {"A": "a b"}),
    (": ${A:=1}", {"A": "1"}),
    (': "${A:=1}" "${B=2}" # c', {"A": "1", "B": "2"}),
    (': "${A:=$HOME/m}"', {"A": "~/m"}),
    (': "${A:=${HOME}/m}"', {"A": "~/m"}),
    (': "${A:=a;b&c|d*e}"', {"A": "a;b&c|d*e"}),
    ('A=\n: "${A:=1}"', {"A": "1"}),
    ('A=\n: "${A=1}"', {"A": ""}),
    ('A=1\n: "${A:=2}"\n: "${A=3}"', {"A": "1"}),
    (': "${A:=1}"\nA=2', {"A": "2"}),
    (": # nothing", {}),
]

QUOTE = "has a meaning in the shell; put the value in single quotes"
REFUSED: list[tuple[str, list[tuple[int, str]]]] = [
    ("A=$(date)", [(1, "$(...) would run a command; write what it gives")]),
    ('A="x$(date)"', [(1, "$(...) would run a command; write what it gives")]),
    ("A=`date`", [(1, "`...` would run a command; write what it gives")]),
    ('A="`date`"', [(1, "`...` would run a command; write what it gives")]),
    ("A=$((1+2))", [(1, "$((...)) is a calculation; write the number that it gives")]),
    ("A=${B:-1}", [(1, "${B:-1} is an expression; write its value")]),
    ("A=${B", [(1, "${B... is an expression; write its value")]),
    ("A=$B", [(1, "$B is another variable; write its value, or put it in single quotes")]),
    ("A=x$HOME/y", [(1, "$HOME is another variable; write its value, or put it in single quotes")]),
    ("A=$HOMER/y", [(1, "$HOMER is another variable; write its value, or put it in single quotes")]),
    ("A=$1", [(1, "$1 is another variable; write its value, or put it in single quotes")]),
    ("A=$HOME", [(1, "a home is taken only as the start of a path, such as $HOME/models")]),
    ("A=$HOME\\\nR/x", [(1, "a home is taken only as the start of a path, such as $HOME/models")]),
    ("A=$'x'", [(1, "$'...' is an expression; write '...' without the $")]),
    ('A=$"x"', [(1, '$"..." is an expression; write "..." without the $')]),
    ("A=~", [(1, "~ stands for a home here; write the whole path, or ~/ at its start")]),
    ("A=~bob/x", [(1, "~ stands for a home here; write the whole path, or ~/ at its start")]),
    ("A=x:~/y", [(1, "~ stands for a home here; write the whole path, or ~/ at its start")]),
    ("A=1;B=2", [(1, "; starts another command; write one setting per line")]),
    ("A=1; B=2", [(1, "; starts another command; write one setting per line")]),
    ("A=1&", [(1, f"& {QUOTE}")]),
    ("A=1&&B=2", [(1, f"& {QUOTE}")]),
    ("A=1|cat", [(1, f"| {QUOTE}")]),
    ("A=1>x", [(1, f"> {QUOTE}")]),
    ("A=<x", [(1, f"< {QUOTE}")]),
    ("A=a*", [(1, f"* {QUOTE}")]),
    ("A=a?", [(1, f"? {QUOTE}")]),
    ("A=[a]", [(1, f"[ {QUOTE}")]),
    ("A={1,2}", [(1, f"{{ {QUOTE}")]),
    ("A=(1 2)", [(1, "A=(...) is a list, which no setting of the kit is; write A=value")]),
    ("A+=1", [(1, "A+= adds to what stands already; write the whole value: A=...")]),
    ("A[0]=1", [(1, "A[0]=1 would be run as a command; write KEY=value, or # before a remark")]),
    ("A = 1", [(1, "A and = stand apart, which the shell takes for a command; write A=value without blanks")]),
    ("A =1", [(1, "A and = stand apart, which the shell takes for a command; write A=value without blanks")]),
    ("A= 1", [(1, "1 is no setting; write KEY=value, or # before a remark")]),
    ("A= x", [(1, "x would be run as a command; write A=x")]),
    ("A=foo bar", [(1, 'bar would be run as a command; write A="foo bar"')]),
    ("A='1", [(1, "' is not closed on its line; close it, or write the value without quotes")]),
    ('A="1\nB=2', [(1, '" is not closed on its line; close it, or write the value without quotes')]),
    ("source other", [(1, "source would be run as a command; write KEY=value, or # before a remark")]),
    (". other", [(1, ". is no setting; write KEY=value, or # before a remark")]),
    ("rm -rf /tmp/x", [(1, "rm would be run as a command; write KEY=value, or # before a remark")]),
    ("set -a", [(1, "set would be run as a command; write KEY=value, or # before a remark")]),
    (': "${A:=it\'s}"', [(1, f"' in the value of A {QUOTE}: A='...'")]),
    ("export # c", [(1, "export alone would print variables; write export KEY=value, or KEY=value")]),
    ("export -p", [(1, "-p is no setting; write KEY=value, or # before a remark")]),
    ("HOME=/x", [(1, "HOME is the home on each node here; write the paths below without it")]),
    ("=1", [(1, "=1 is no setting; write KEY=value, or # before a remark")]),
    ("2A=1", [(1, "2A=1 is no setting; write KEY=value, or # before a remark")]),
    ("A=a\x07b", [(1, "holds a control character (U+0007); write the line anew")]),
    ("A=a\rb", [(1, "holds a control character (U+000D); write the line anew")]),
    ("A='a\x00b'", [(1, "holds a control character (U+0000); write the line anew")]),
    (': "${A:-1}"', [(1, '"${A:-1}" is an expression; write : "${A:=value}", or A=value')]),
    (': "${A}"', [(1, '"${A}" is an expression; write : "${A:=value}", or A=value')]),
    (': "${A:=1"', [(1, '${A is not closed on its line; write : "${A:=value}"')]),
    (': "${A:=$B}"', [(1, f"$ in the value of A {QUOTE}: A='...'")]),
    (': "${A:=`x`}"', [(1, f"` in the value of A {QUOTE}: A='...'")]),
    (': "${A:=a"b}"', [(1, f"\" in the value of A {QUOTE}: A='...'")]),
    (': "${A:=it\'s}"', [(1, f"' in the value of A {QUOTE}: A='...'")]),
    (": ${A:=a b}", [(1, 'blanks in the value of A; write : "${A:=...}" with double quotes')]),
    (": ${A:=a*}", [(1, f"* in the value of A {QUOTE}: A='...'")]),
    (": A=1", [(1, 'A=1 after a colon sets nothing; write : "${KEY:=value}", or KEY=value')]),
    (
        "A=$(x \\\n y)\nB=`z`",
        [(1, "$(...) would run a command; write what it gives"), (3, "`...` would run a command; write what it gives")],
    ),
    (
        'A=1\n\nB=$C\n: "${D:?}"\nE=2',
        [
            (3, "$C is another variable; write its value, or put it in single quotes"),
            (4, '"${D:?}" is an expression; write : "${D:=value}", or D=value'),
        ],
    ),
]


def held(file: KitFile) -> dict[str, str]:
    """The values at the end of the file."""
    return {key: line.value for key, line in file.values.items()}


@pytest.mark.parametrize(("text", "values"), TAKEN, ids=[repr(text) for text, _ in TAKEN])
def test_taken(text: str, values: dict[str, str]) -> None:
    """What bash would hold at the end."""
    file = parse(text)
    assert file.refusals == ()
    assert held(file) == values


@pytest.mark.parametrize(("text", "refusals"), REFUSED, ids=[repr(text) for text, _ in REFUSED])
def test_refused(text: str, refusals: list[tuple[int, str]]) -> None:
    """All lines that need a shell, each with what to write."""
    assert [(refusal.number, refusal.text) for refusal in parse(text).refusals] == refusals


def test_lines_that_can_be_read_are_kept_beside_refusals() -> None:
    """One bad line hides no other, and what stands on it is not half taken."""
    file = parse("A=1\nB=2 C=$D\nE=3\n")
    assert held(file) == {"A": "1", "E": "3"}
    assert [refusal.number for refusal in file.refusals] == [2]


def test_repeated() -> None:
    """Which lines set a variable, and which one holds."""
    file = parse('A=1\nB=1\nA=2\n: "${B:=2}"\n: "${C:=1}" "${C:=2}"\n')
    assert file.repeated == {"A": (1, 3), "B": (2, 4), "C": (5, 5)}
    assert {key: line.number for key, line in file.values.items()} == {"B": 2, "A": 3, "C": 5}
    assert kit_env.shown_lines((1, 3, 4)) == "lines 1, 3 and 4"
    assert kit_env.shown_lines((7,)) == "line 7"


@pytest.mark.parametrize(
    ("text", "of_node"),
    [
        ("WORKER_LAN_IP=192.168.1.2\nHEAD_NCCL_IF=a\nMAX_LEN=1", False),
        (': "${HEAD_RAIL_IP:=10.200.0.1}"', True),
        ("NCCL_IF=a\nNCCL_HCA=b", True),
        ("NCCL_IF=a\nHEAD_NCCL_IF=b", False),
        ("", False),
    ],
)
def test_whose_file(text: str, of_node: bool) -> None:
    """The installer's and a launcher's are told apart by how they are written."""
    assert parse(text).is_of_a_node is of_node


# Files


def test_file(tmp_path: Path) -> None:
    """A file with a byte order mark, Windows line ends and no end of the last line."""
    path = tmp_path / ".env"
    path.write_bytes(b"\xef\xbb\xbfA=1\r\nB='na\xc3\xafve'")
    assert held(read(path)) == {"A": "1", "B": "naïve"}
    assert read(path).name == str(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    """Missing, a directory, a pipe, binary, not UTF-8, huge: one line each, and nothing is waited for."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"A=1\nB=na\xefve\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\x02\x01\x01\x00\x00\xff\xfe" * 10)
    (tmp_path / "zeros").write_bytes(b"A=1\n\x00\x00")
    (tmp_path / "huge").write_bytes(b"A=1\n" * 300_000)
    (tmp_path / "loop").symlink_to("loop")
    wanted = "name the kit's .env, or a node's ~/.glm53-serve.env"
    expected = {
        "missing": (0, f"no such file; {wanted}"),
        ".": (0, f"is a directory; {wanted}"),
        "pipe": (0, f"is no regular file; {wanted}"),
        "latin": (2, "is not text in UTF-8; save the file as UTF-8"),
        "binary": (1, "is not text in UTF-8; save the file as UTF-8"),
        "zeros": (2, "holds a control character (U+0000); write the line anew"),
        "huge": (0, "has 1200000 bytes; a settings file of the kit has at most 1000000"),
        "loop": (0, "cannot be read: Too many levels of symbolic links"),
        "x" * 300: (0, "cannot be read: File name too long"),
    }
    for name, refusal in expected.items():
        file = read(tmp_path / name)
        assert [(found.number, found.text) for found in file.refusals] == [refusal], name


def test_an_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No permission is a refusal."""

    def denied(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / ".env"
    path.write_text("A=1")
    monkeypatch.setattr(Path, "read_bytes", denied)
    assert [found.text for found in read(path).refusals] == ["cannot be read: Permission denied"]


def test_refusal_lines_name_file_and_line() -> None:
    """As they are printed."""
    assert list(kit_env.refusal_lines(parse("A=`x`", "kit/.env"))) == [
        "kit/.env:1: `...` would run a command; write what it gives"
    ]
    assert list(kit_env.refusal_lines(read(Path("no/such")))) == [
        "no/such: no such file; name the kit's .env, or a node's ~/.glm53-serve.env"
    ]


# Properties

VALUE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


def quoted(value: str, way: str) -> str:
    """The value as a person may write it."""
    if way == "double":
        return '"' + "".join(f"\\{sign}" if sign in '"\\$`' else sign for sign in value) + '"'
    if way == "mixed":
        half = len(value) // 2
        return quoted(value[:half], "double") + quoted(value[half:], "single")
    return "'" + value.replace("'", "'\\''") + "'" if way == "single" else shlex.quote(value)


@given(
    st.lists(
        st.tuples(st.sampled_from("ABC"), VALUE, st.sampled_from(["single", "double", "mixed", "as needed"])),
        max_size=6,
    ),
    st.booleans(),
    st.booleans(),
)
def test_round_trip(settings_: list[tuple[str, str, str]], export: bool, windows: bool) -> None:
    """Whatever is written in quotes is read back, the last one of a name."""
    end = "\r\n" if windows else "\n"
    text = end.join(f"{'export ' if export else ''}{key}={quoted(value, way)}  # c" for key, value, way in settings_)
    file = parse(text)
    assert file.refusals == ()
    assert held(file) == {key: value for key, value, _ in settings_}


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.text("ab1/._:-, =;~&|*", max_size=8), st.booleans()), max_size=6))
def test_round_trip_of_the_launchers_form(stated: list[tuple[str, str, bool]]) -> None:
    """As the kit's installer writes it: the first value that is not empty, or the first one at all."""
    text = "\n".join(f': "${{{key}{":=" if fill else "="}{value}}}"' for key, value, fill in stated)
    expected: dict[str, str] = {}
    for key, value, fill in stated:
        if key not in expected or (fill and not expected[key]):
            expected[key] = value
    file = parse(text)
    assert file.refusals == ()
    assert held(file) == expected


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No exception, and a refusal names a line that is there."""
    file = parse(text)
    for refusal in file.refusals:
        assert 1 <= refusal.number <= text.count("\n") + 1
        assert refusal.text
    for line in file.lines:
        assert line.key.isidentifier()
        assert line.form in Form


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path: Path, data: bytes) -> None:
    """The same for bytes."""
    path = tmp_path / "any"
    path.write_bytes(data)
    read(path)


PIECES = [
    "A=", "B=", "\n", " ", "\t", "#", "'", '"', "\\", "$", "~", "/", ":", "a", "b", "1", "=", "$HOME", "${HOME}", "/m", "{", "}",
    ': "${A:=', ': "${B=', ': ${A:=', '}"', "export ", "\\\n", ";", "*", "`", "(", "!", ",", "é", "$$", "[",
]  # fmt: skip
RAW = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
PART = st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
SETTING = st.builds(
    "{}{}{}".format,
    st.sampled_from(["A=", "B=", "export A=", "A=a B=", 'A="', "B='"]),
    PART,
    st.sampled_from(["", " ", '"', "'"]),
)
DEFAULT = st.builds(': "${{{}{}}}"'.format, st.sampled_from(["A:=", "B=", "A="]), PART)
BASH = shutil.which("bash")
HOME_ON_THE_NODE = "/home/on-the-node"


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@settings(max_examples=150, deadline=None)
@given(RAW | st.lists(SETTING | DEFAULT, max_size=4).map("\n".join))
def test_what_is_taken_is_what_bash_reads(text: str) -> None:
    """Only texts without a refusal come to bash, and there they run no command and set the same values."""
    file = parse(text)
    if file.refusals:
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kit"
        path.write_text(text, encoding="utf-8")
        keys = list(file.values)
        shows = "".join(f' "${{{key}-}}"' for key in keys)
        done = subprocess.run(
            [str(BASH), "--noprofile", "--norc", "-c", f'. "$1"; printf "%s\\0"{shows or " x"}', "bash", str(path)],
            cwd=directory,
            env={"HOME": HOME_ON_THE_NODE, "PATH": "/nonexistent", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=20,
            check=False,
        )
    assert done.stderr == b"", text
    values = done.stdout.decode().split("\0")[:-1]
    for key, value in zip(keys, values, strict=False):
        ours = file.values[key].value
        # "~/m" in quotes stays as it is in bash, and finds no directory; what was meant is the home.
        alike = {ours, ours.replace("~", HOME_ON_THE_NODE, 1)} if ours.startswith("~/") else {ours}
        assert value in alike, text


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text full of commands leaves no trace."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "kit"
    path.write_text(
        "A=$(touch made)\nB=`touch made`\ntouch made\n. ./other\nC=1; touch made\n: $(touch made)\nD=<(touch made)\n"
    )
    (tmp_path / "other").write_text("touch made\n")
    assert len(read(path).refusals) == 7
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["kit", "other"]
