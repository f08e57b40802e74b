"""The parts of HostFacts that doctor alone asks, and what it knows better of the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from facts.host import Boot, Clock, Firewall, FirmwareDevice, Gpu, HostFacts, KernelLine, Listener, Port
from facts.host_answer import Answer, NotRead
from facts.tools import (
    boots,
    ethtool,
    fwupdmgr,
    ibdev2netdev,
    ibv_devinfo,
    kernel_log,
    lspci,
    nvidia_smi,
    ss,
    timedatectl,
    ufw,
)
from facts.tools.garbled import Garbled
from facts.unknown import Unknown


def read(answer: Answer, brief: HostFacts) -> HostFacts:
    """All of it."""
    return replace(
        brief,
        ports=brief.ports if isinstance(brief.ports, Unknown) else tuple(_ports(answer, brief.ports)),
        firewall=brief.firewall if isinstance(brief.firewall, Unknown) else _firewall(answer, brief.firewall),
        clock=brief.clock if isinstance(brief.clock, Unknown) else _clock(answer, brief.clock),
        gpu=answer.part(_gpu),
        listeners=answer.part(_listeners),
        firmware=answer.part(_firmware),
        kernel_lines=answer.part(_kernel_lines),
        boots=answer.part(_boots),
        netplan=answer.part(lambda a: a.said("netplan")),
        pci=answer.part(_pci),
        pairs=answer.part(_pairs),
    )


def _listeners(answer: Answer) -> tuple[Listener, ...]:
    return tuple(ss.parse(answer.said("ss")))


def _kernel_lines(answer: Answer) -> tuple[KernelLine, ...]:
    return tuple(kernel_log.parse(answer.said("journalctl kernel")))


def _pci(answer: Answer) -> tuple[str, ...]:
    return tuple(one.slot for one in lspci.connectx(lspci.parse(answer.said("lspci"))))


def _pairs(answer: Answer) -> tuple[str, ...]:
    found = ibdev2netdev.parse(answer.said("ibdev2netdev"))
    return tuple(f"{one.hca} {one.netdev} {'Up' if one.up else 'Down'}" for one in found)


def _said(answer: Answer, name: str) -> str:
    """What a tool wrote that another part can do without; "" where it wrote nothing."""
    try:
        return answer.said(name)
    except NotRead:
        return ""


def _ports(answer: Answer, ports: tuple[Port, ...]) -> list[Port]:
    """With the MTU that RDMA uses, and what is plugged in. A tool that cannot be read adds nothing."""
    try:
        devices = {device.hca: device for device in ibv_devinfo.parse(_said(answer, "ibv_devinfo"))}
    except Garbled:
        devices = {}
    found = []
    for port in ports:
        device = devices.get(port.hca)
        speed = port.speed_mbps
        text = _said(answer, f"ethtool {port.netdev}")
        if speed is None and text:
            speed = _speed(text)
        module = ethtool.module(_said(answer, f"ethtool -m {port.netdev}"))
        mtu = device.active_mtu if device else None
        found.append(replace(port, active_mtu=mtu, speed_mbps=speed, module=module))
    return found


def _speed(text: str) -> int | None:
    try:
        return ethtool.parse(text).speed_mbps
    except Garbled:
        return None


def _firewall(answer: Answer, seen: Firewall) -> Firewall:
    """ufw's own word on whether it is in force, where its files say that it is meant to be."""
    try:
        said = ufw.parse(answer.said("ufw"))
    except (NotRead, Garbled):
        return seen
    return replace(seen, drops=said.drops) if said.manager else said


def _clock(answer: Answer, seen: Clock) -> Clock:
    try:
        said = timedatectl.parse(answer.said("timedatectl"))
    except (NotRead, Garbled):
        return seen
    return replace(seen, synchronized=said.synchronized)


def _gpu(answer: Answer) -> tuple[Gpu, ...]:
    """A driver that gives no mask of reasons names them in its long text."""
    found = nvidia_smi.gpus(answer.said("nvidia-smi"))
    text = _said(answer, "nvidia-smi -q")
    if len(found) == 1 and not found[0].reasons and text:
        found = [replace(found[0], reasons=nvidia_smi.active_reasons(text))]
    return tuple(found)


def _firmware(answer: Answer) -> tuple[FirmwareDevice, ...]:
    # Exit 2: there is nothing to do, fwupdmgr(1).
    return tuple(fwupdmgr.parse(answer.said("fwupdmgr devices"), _said(answer, "fwupdmgr upgrades")))


def _boots(answer: Answer) -> tuple[Boot, ...]:
    ends: Mapping[int, str] = {-number: _said(answer, f"journalctl end-{number}") for number in (1, 2, 3)}
    return tuple(boots.boots(answer.said("journalctl boots"), ends))
