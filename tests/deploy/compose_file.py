"""What compose.yaml says, as data: commands, environments, volumes, with variables filled in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
_VARIABLE = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")


@dataclass(frozen=True)
class Mount:
    """A volume or a host folder (``source``) at ``target`` in the container."""

    source: str
    target: str
    read_only: bool


@dataclass(frozen=True)
class Service:
    """One service.

    Attributes:
        words: its command; empty where the image's own runs (the database).
        probe: command that succeeds once it is healthy; empty without a health check.
        needs: services that must be healthy before it starts.
    """

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    restart: str
    replicas: int
    probe: tuple[str, ...]
    needs: tuple[str, ...]
    shm_size: str


def substituted(value: Any, variables: Mapping[str, str]) -> Any:
    """``${NAME:-default}`` and ``${NAME:?message}`` in every text, as compose does it."""

    def replace(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == "?":
            raise KeyError(rest)
        return rest or ""

    if isinstance(value, str):
        return _VARIABLE.sub(replace, value)
    if isinstance(value, list):
        return [substituted(item, variables) for item in value]
    if isinstance(value, dict):
        return {key: substituted(item, variables) for key, item in value.items()}
    return value


def services(variables: Mapping[str, str]) -> dict[str, Service]:
    """Services of deploy/compose.yaml that start unasked, those that others need first."""
    text = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    found: dict[str, Service] = {}
    unasked = {name: told for name, told in text["services"].items() if "profiles" not in told}
    waiting = substituted(unasked, variables)
    while waiting:
        ready = [n for n, s in waiting.items() if not set(s.get("depends_on", ())) & set(waiting)]
        for name in ready:
            found[name] = _service(name, waiting.pop(name))
    return found


def image_environment() -> dict[str, str]:
    """The ENV block of the Dockerfile's last stage."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    last = text[text.rindex("FROM ") :]
    pairs = [w for line in re.findall(r"^ENV (.*)$", last, re.M) for w in shlex.split(line)]
    return dict(pair.split("=", 1) for pair in pairs)


def _service(name: str, told: Mapping[str, Any]) -> Service:
    command = told.get("command", [])
    probe = told.get("healthcheck", {}).get("test", [])
    assert not probe or probe[0] == "CMD", name
    mounts = [volume.split(":") for volume in told.get("volumes", ())]
    return Service(
        name,
        tuple(shlex.split(command) if isinstance(command, str) else command),
        {key: str(value) for key, value in told.get("environment", {}).items()},
        tuple(Mount(m[0], m[1], m[2:] == ["ro"]) for m in mounts),
        told["restart"],
        int(told.get("deploy", {}).get("replicas", 1)),
        tuple(probe[1:]),
        tuple(told.get("depends_on", ())),
        told.get("shm_size", "64mb"),
    )
