"""The two Sparks: how to reach each one, which of them is the head, and its rails.

`ip -br addr` and `rdma link` on a node show its netdevs and HCAs. On a Spark one QSFP port is two rails (two netdevs on
separate PCIe links, one cable). The rails' addresses are yours to choose: deploy.py gives them to the netdevs. Leave
"rails" out on both nodes, and deploy.py finds them.

Running on the head itself? Replace its entry by ("@local", {"management_address": "192.168.1.10", "rails": [...]}).
"""

from spec.transport import ssh

head = [
    (
        "spark-a",
        {
            **ssh("192.168.1.10", user="alice"),
            "rails": [
                {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.1/24"},
                {"netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0", "address": "10.200.1.1/24"},
            ],
        },
    ),
]

worker = [
    (
        "spark-b",
        {
            **ssh("192.168.1.11", user="alice"),
            "rails": [
                {"netdev": "enp1s0f0np0", "hca": "rocep1s0f0", "address": "10.200.0.2/24"},
                {"netdev": "enP2p1s0f0np0", "hca": "roceP2p1s0f0", "address": "10.200.1.2/24"},
            ],
        },
    ),
]
