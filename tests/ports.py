"""Ports of servers that tests start, kill and start again."""

from __future__ import annotations

import random
import socket

# Below those that systems give to outgoing connections (Linux: from 32768), of which other tests
# make hundreds: one of them may take a port that is free while its server starts.
_PORTS = range(20_000, 32_000)


def own_port() -> int:
    """A port on which nothing listens, and which no outgoing connection is given."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError("100 ports are in use")
