"""Says which servers the bench would find: `python -m bench.peers`."""

from __future__ import annotations

from bench.peers import Missing, servers

PACKAGES = {
    "redis-server": "redis-server",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "nats-server": "nats-server",
}

for name, package in PACKAGES.items():
    try:
        print(f"{name:12} {servers.program(name)}, {servers.version(name)}")
    except Missing:
        print(f"{name:12} missing; on Debian: apt-get install {package}")
