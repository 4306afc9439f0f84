"""On how many machines, devices and servers a run is laid out."""

import re
from typing import NamedTuple

from muster.errors import ConfigError

_FORM = re.compile(r"(?:(\d{1,6})x)?(\d{1,6})(?:\+(\d{1,6}))?", re.ASCII)


class Layout(NamedTuple):
    """Devices that train, one rank each, and servers that sample on devices of their own."""

    nodes: int
    devices: int
    """Of each node."""
    servers: int = 0
    """One device each; without any, every rank samples its share itself."""

    @property
    def ranks(self) -> int:
        """Devices that train."""
        return self.nodes * self.devices

    @property
    def total(self) -> int:
        """All devices."""
        return self.ranks + self.servers

    def __str__(self) -> str:
        """As it is written: `8`, `4x8`, `4x8+2`."""
        trained = str(self.devices) if self.nodes == 1 else f"{self.nodes}x{self.devices}"
        return f"{trained}+{self.servers}" if self.servers else trained


def read_layouts(text: str) -> tuple[Layout, ...]:
    """Layouts as they are written, `1,8,4x8+2`; raises ConfigError for one that can't be read."""
    return tuple(_layout(part.strip()) for part in text.split(","))


def _layout(text: str) -> Layout:
    match = _FORM.fullmatch(text)
    nodes, devices, servers = (int(part or 0) for part in match.groups()) if match else (0, 0, 0)
    if match is None or devices == 0 or (match[1] is not None and nodes == 0):
        raise ConfigError(
            f"--devices names {text!r}; allowed: a number of devices (8), nodes x devices of each (4x8), "
            "either with servers that sample on devices of their own (4x8+2), several with commas between."
        )
    return Layout(nodes or 1, devices, servers)
