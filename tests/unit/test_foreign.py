"""Somebody else's netplan file without a rail: the text, and what netplan would read of it."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from spec.foreign import NOTE, Odd, excerpt, without

pytestmark = pytest.mark.report("NET-15")

PLAYBOOK = """\
network:
  version: 2
  ethernets:
    enp1s0f1np1:
      addresses:
        - 192.168.100.10/24
      dhcp4: no
    enP2p1s0f1np1:
      addresses:
        - 192.168.101.10/24
      dhcp4: no
"""
# Field reports S24: without a final newline, and both ports of one half.
ASSET = """\
network:
  version: 2
  ethernets:
    enp1s0f0np0:
      link-local: [ ipv4 ]
    enp1s0f1np1:
      link-local: [ ipv4 ]"""
MIXED = """\
# written by hand
network:
  version: 2
  renderer: networkd

  ethernets:
    # management
    enP7s7:
      dhcp4: true
    # the cable
    enp1s0f0np0:   # twin 0
      addresses: [10.20.0.11/24]
      mtu: 9000

    # what follows
    eth9: {dhcp4: no}
"""


def test_one_of_two() -> None:
    assert (
        without(ASSET, ["enp1s0f0np0"])
        == f"""\
network:
  version: 2
  ethernets:
    {NOTE}
#     enp1s0f0np0:
#       link-local: [ ipv4 ]
    enp1s0f1np1:
      link-local: [ ipv4 ]"""
    )


def test_the_last_of_a_file_without_a_final_newline() -> None:
    assert without(ASSET, ["enp1s0f1np1"]).endswith(f"    {NOTE}\n#     enp1s0f1np1:\n#       link-local: [ ipv4 ]")


def test_the_section_goes_with_its_last_definition() -> None:
    """netplan refuses `ethernets:` without a value."""
    assert (
        without(PLAYBOOK, ["enp1s0f1np1", "enP2p1s0f1np1"])
        == f"""\
network:
  version: 2
  {NOTE}
#   ethernets:
#     enp1s0f1np1:
#       addresses:
#         - 192.168.100.10/24
#       dhcp4: no
#     enP2p1s0f1np1:
#       addresses:
#         - 192.168.101.10/24
#       dhcp4: no
"""
    )


def test_the_whole_of_a_file_that_says_nothing_else() -> None:
    text = "network:\n  ethernets:\n    enp1s0f0np0:\n      mtu: 9000\n"
    assert without(text, ["enp1s0f0np0"]) == (
        f"{NOTE}\n# network:\n#   ethernets:\n#     enp1s0f0np0:\n#       mtu: 9000\n"
    )


def test_what_stands_around_stays() -> None:
    assert without(MIXED, ["enp1s0f0np0"]) == MIXED.replace(
        "    enp1s0f0np0:   # twin 0\n      addresses: [10.20.0.11/24]\n      mtu: 9000\n",
        f"    {NOTE}\n#     enp1s0f0np0:   # twin 0\n#       addresses: [10.20.0.11/24]\n#       mtu: 9000\n",
    )


def test_lines_of_windows() -> None:
    text = ASSET.replace("\n", "\r\n") + "\r\n"
    assert without(text, ["enp1s0f0np0"]).splitlines() == without(ASSET, ["enp1s0f0np0"]).splitlines()


def test_a_text_of_several_lines() -> None:
    text = "network:\n  ethernets:\n    a:\n      x: |\n        1\n        2\n    b: {mtu: 9000}\n"
    assert yaml.safe_load(without(text, ["a"])) == {"network": {"ethernets": {"b": {"mtu": 9000}}}}
    assert yaml.safe_load(without(text, ["b"])) == {"network": {"ethernets": {"a": {"x": "1\n2\n"}}}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("network: {version: 2, ethernets: {a: {mtu: 9000}, b: {}}}\n", "it is written in braces"),
        ("network:\n  ethernets: {a: {mtu: 9000}, b: {}}\n", "it is written in braces"),
        ("network:\n  ethernets:\n    b: {mtu: 9000}\n", "it has no a under ethernets"),
        ("network:\n  bonds:\n    a: {}\n", "it has no a under ethernets"),
        ("network:\n  ethernets:\n    a: &x {mtu: 1}\n    b: *x\n", "other lines of it refer to these"),
        ("network: [\n", "it is no YAML"),
        ("", "it has no a under ethernets"),
        ("just words\n", "it has no a under ethernets"),
    ],
)  # fmt: skip
def test_an_odd_form_is_for_its_owner_to_edit(text: str, why: str) -> None:
    with pytest.raises(Odd, match=why):
        without(text, ["a"])


def test_braces_that_go_as_a_whole() -> None:
    assert yaml.safe_load(without("network:\n  version: 2\n  ethernets: {a: {mtu: 9000}}\n", ["a"])) == {
        "network": {"version": 2}
    }


def test_a_key_that_stands_twice() -> None:
    text = "network:\n  ethernets:\n    a: {mtu: 1}\n    a: {mtu: 2}\n    b: {}\n"
    assert yaml.safe_load(without(text, ["a"])) == {"network": {"ethernets": {"b": {}}}}


def test_where_a_definition_stands() -> None:
    assert excerpt(MIXED, "enp1s0f0np0") == (
        11, ("    enp1s0f0np0:   # twin 0", "      addresses: [10.20.0.11/24]", "      mtu: 9000"),
    )  # fmt: skip
    with pytest.raises(Odd):
        excerpt(MIXED, "enp1s0f1np1")


LEAF = st.one_of(st.booleans(), st.integers(0, 9999), st.sampled_from(["no", "10.0.0.1/24", "a: b", "# c", "x\ny", ""]))
VALUE = st.dictionaries(st.sampled_from(["mtu", "dhcp4", "addresses"]), st.one_of(LEAF, st.lists(LEAF, max_size=3)))
FILE = st.dictionaries(st.sampled_from(["a", "b", "c d", "on"]), VALUE, min_size=1)


@settings(deadline=None)
@given(FILE, st.data(), st.booleans(), st.sampled_from([None, False]))
def test_what_is_left_reads_as_before(
    entries: dict[str, object], data: st.DataObject, version: bool, flow: bool | None
) -> None:
    document: dict[str, object] = {"network": ({"version": 2} if version else {}) | {"ethernets": entries}}
    text = yaml.safe_dump(document, default_flow_style=flow)
    gone = data.draw(st.sets(st.sampled_from(sorted(entries)), min_size=1))
    left = {name: value for name, value in entries.items() if name not in gone}
    try:
        found = yaml.safe_load(without(text, gone))
    except Odd:
        return
    network = ({"version": 2} if version else {}) | ({"ethernets": left} if left else {})
    assert found == ({"network": network} if network else None)


@settings(deadline=None)
@given(st.text(alphabet="network:ethernets a\n-{}[]#&*!|>'\"\t2", max_size=80))
def test_any_text_is_edited_or_refused(text: str) -> None:
    try:
        without(text, ["a"])
    except Odd:
        pass
