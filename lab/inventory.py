"""The simulated pair as an inventory: what one would state of two Sparks with different users, netdevs and paths."""

import os as _os

from lab import settings as _settings
from spec.transport import ssh as _ssh


def _node(host, **data):
    """One host, reached from the control machine with the lab's own key and pinned host keys."""
    asked = _os.environ.get("LAB_RAILS", "")
    ends = host.spare if asked == "dark" and host is _settings.HEAD else host.rails
    rails = [{"netdev": end.netdev, "hca": end.hca, "address": f"10.200.{end.number}.{host.number}/24"} for end in ends]
    return host.hostname, {
        **_ssh(host.address, host.user, key=str(_settings.KEY), known_hosts=str(_settings.KNOWN_HOSTS)),
        "management_address": host.address,
        # LAB_RAILS=found leaves them out, LAB_RAILS=dark states the head's port that is not cabled.
        **({} if asked == "found" else {"rails": rails}),
        **data,
    }


# LAB_BUNDLE names a bundle on the head's disk.
_bundle = {"bundle_path": _os.environ["LAB_BUNDLE"]} if "LAB_BUNDLE" in _os.environ else {}
head = [_node(_settings.HEAD, weights_path=_settings.MODEL_ON_HEAD, **_bundle)]
worker = [_node(_settings.WORKER, weights_path=_settings.WEIGHTS_ON_WORKER)]
