"""ufw's own files, which hold what it enforces, and `ufw status verbose`."""

from __future__ import annotations

import re

from facts.host import Firewall
from facts.tools.garbled import Garbled

ANY = ("0.0.0.0/0", "::/0")
_SETTING = re.compile(r"""\s*([A-Z_]+)\s*=\s*["']?([A-Za-z]+)["']?\s*(?:#.*)?""")
_DEFAULT = re.compile(r"Default:.*?\b(allow|deny|reject) \(incoming\).*")


def from_files(conf: str, defaults: str, rules: str) -> Firewall | None:
    """From /etc/ufw/ufw.conf, /etc/default/ufw and /etc/ufw/user.rules; None where it is switched off."""
    if _settings(conf).get("ENABLED", "no").lower() != "yes":
        return None
    policy = _settings(defaults).get("DEFAULT_INPUT_POLICY")
    if policy is None:
        raise Garbled("/etc/default/ufw", defaults or "nothing")
    return Firewall("ufw", policy.upper() in ("DROP", "REJECT"), tuple(added(rules)))


def added(text: str) -> list[str]:
    """The rules in /etc/ufw/user.rules, each as `ufw show added` says it, without the first word."""
    return [_rule(line) for line in text.splitlines() if line.startswith("### tuple ###")]


def _rule(line: str) -> str:
    """ "### tuple ### ACTION PROTOCOL DPORT DST SPORT SRC [DAPP SAPP] DIRECTION [comment=HEX]": ufw's own notation,
    src/backend_iptables.py there."""
    words = line.removeprefix("### tuple ###").split()
    comment = f" comment '{_comment(words.pop(), line)}'" if words and words[-1].startswith("comment=") else ""
    if len(words) not in (7, 9):
        raise Garbled("/etc/ufw/user.rules", line)
    action, protocol, dport, target, sport, source = words[:6]
    dapp, sapp = (word.replace("%20", " ") for word in (words[6:8] if len(words) == 9 else ("-", "-")))
    direction, _, netdev = words[-1].partition("_")
    route = "route " if action.startswith("route:") else ""
    action, _, logged = action.removeprefix("route:").partition("_")
    logged = f" {logged}" if logged else ""
    out = " out" if direction == "out" else ""
    is_plain = target in ANY and source in ANY and sport == "any" and sapp == "-" and not netdev
    if is_plain and (dport != "any" or dapp != "-"):
        ports = dapp if dapp != "-" else dport if protocol == "any" else f"{dport}/{protocol}"
        return f"{route}{action}{out}{logged} {ports}{comment}"
    text = f" {direction} on {netdev.replace('!out_', ' out on ')}" if netdev else out
    text += logged
    for word, place, port, app in (("from", source, sport, sapp), ("to", target, dport, dapp)):
        place = "any" if place in ANY else place
        if place == "any" and port == "any" and app == "-":
            continue
        text += f" {word} {place}"
        if app != "-":
            text += f" app '{app}'" if " " in app else f" app {app}"
        elif port != "any":
            text += f" port {port}"
    if protocol != "any" and dapp == "-" and sapp == "-":
        text += f" proto {protocol}"
    return f"{route}{action}{text or ' to any'}{comment}"


def _comment(word: str, line: str) -> str:
    try:
        return bytes.fromhex(word.removeprefix("comment=")).decode()
    except ValueError:
        raise Garbled("/etc/ufw/user.rules", line) from None


def parse(text: str) -> Firewall:
    """`ufw status verbose`: manager "" where it is inactive; the rules as the lines of its table."""
    lines = [line.rstrip() for line in text.splitlines()]
    status = next((line for line in lines if line.startswith("Status: ")), None)
    if status == "Status: inactive":
        return Firewall("", drops=False)
    if status != "Status: active":
        raise Garbled("ufw status", text or "nothing")
    default = next((matched[1] for line in lines if (matched := _DEFAULT.fullmatch(line))), None)
    if default is None:
        raise Garbled("ufw status verbose", text)
    rules = []
    table = next((number for number, line in enumerate(lines) if line.startswith("--")), len(lines))
    for line in lines[table + 1 :]:
        if line.strip():
            rules.append(" ".join(line.split()))
    return Firewall("ufw", default != "allow", tuple(rules))


def _settings(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        matched = _SETTING.fullmatch(line)
        if matched:
            found[matched[1]] = matched[2]
    return found
