"""Whether packets of full size pass a rail, seen from a node."""

from __future__ import annotations

import shlex

from pyinfra.api.facts import FactBase

HEADERS = 28
"""IPv4 and ICMP: what of the MTU is not payload."""
WAIT_SECONDS = 2


class RailPings(FactBase[dict[str, str]]):
    """Ping each "NETDEV ADDRESS MTU" with one unfragmented packet of full size, all at once; "" where one came back,
    else what ping said."""

    @staticmethod
    def default() -> dict[str, str]:
        """No answer at all."""
        return {}

    def command(self, targets: list[str]) -> str:
        """One shell line for all of them."""
        parts = []
        for target in targets:
            netdev, address, mtu = target.split()
            ping = f"ping -n -q -M do -c 2 -i 0.2 -W {WAIT_SECONDS} -s {int(mtu) - HEADERS}"
            ping += f" -I {shlex.quote(netdev)} {shlex.quote(address)}"
            parts.append(f"{{ said=$({ping} 2>&1); echo $? {shlex.quote(target)} $said; }} &")
        return " ".join(parts) + " wait"

    def process(self, output: list[str]) -> dict[str, str]:
        """By target; a line of another form is no answer of ours."""
        found = {}
        for line in output:
            words = line.split(maxsplit=4)
            if len(words) >= 4 and words[0].isdigit():
                said = words[4] if len(words) > 4 else f"ping exited {words[0]}"
                found[" ".join(words[1:4])] = "" if words[0] == "0" else said[-160:]
        return found
