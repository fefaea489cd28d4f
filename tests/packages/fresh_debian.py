"""A fresh Debian in a chroot of its own namespaces: as it came from debootstrap, with Slurm and munge, and nothing of ours."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from tests.throwaway.debian_root import DebianRoot

ROOTS = {
    name: DebianRoot(suite, ("systemd", "python3", "slurm-wlm", "munge"))
    for name, suite in (("debian12", "bookworm"), ("debian13", "trixie"))
}
PROGRAMS = ("unshare", "nsenter", "chroot", "dpkg-deb", "ip")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class FreshDebian:
    """A running copy of the folder of `debian`, as a context manager; everything in it ends with it."""

    def __init__(self, debian: DebianRoot) -> None:
        self._debian = debian
        self._folder = Path(tempfile.mkdtemp(prefix="synergy-debian-"))
        self.root = self._folder / "root"  # as seen from inside the namespaces alone
        self._upper = self._folder / "upper"
        self._init: subprocess.Popen[str] | None = None
        self._pid = 0

    def __enter__(self) -> FreshDebian:
        for folder in (self.root, self._upper, self._folder / "work"):
            folder.mkdir()
        layers = f"lowerdir={self._debian.folder},upperdir={self._upper},workdir={self._folder / 'work'}"
        steps = (
            f"mount -t overlay overlay -o {layers} {self.root}",
            f"cd {self.root}",
            "ip link set lo up",
            # names are looked up for addresses of the kinds that the host has, beside loopback
            "ip link add eth0 type veth peer name eth1 && ip link set eth1 up",
            "ip address add 10.0.0.1/24 dev eth0 && ip link set eth0 up",
            "hostname head",
            "mount -t proc proc proc",
            "mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys",  # the host's kernel settings
            "mount -t sysfs -o ro sysfs sys",  # without the host's cgroups
            "mkdir -p dev/pts dev/shm",
            "mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts",
            "mount -t tmpfs shm dev/shm",
            "ln -sfn pts/ptmx dev/ptmx",
            "for n in 0 1 2 3; do mknod dev/gpu$n c 1 3; done",  # for gres.conf
            "mount -t tmpfs run run",
            "mkdir -p run/systemd/system run/slurm",
            "printf '127.0.0.1 localhost\\n10.0.0.1 head\\n' >etc/hosts",
            f"install -m755 {Path(__file__).with_name('systemctl.py')} usr/local/bin/systemctl",
            "cp usr/local/bin/systemctl bin/systemctl",  # deb-systemd-invoke may name it whole
            # only inside is the root this one: `ready` is said there
            # it ends with its stdin, so with this process, however this one ends
            "exec chroot . /bin/sh -c 'echo ready; exec cat'",
        )
        options = ["--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        command = ["unshare", *options, "sh", "-c", " && ".join(steps)]
        self._init = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert self._init.stdout is not None
            if self._init.stdout.readline() != "ready\n":
                raise RuntimeError("the namespaces could not be made")
            children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()
            self._pid = int(children[0])
            if self.root_here.samefile("/"):  # what is written there would be written here
                raise RuntimeError("the chroot is this machine's own root")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._init is not None:
            self._init.kill()  # and with it, by --kill-child, all in its namespace
            self._init.communicate(timeout=30)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def root_here(self) -> Path:
        """Its / as this process sees it."""
        return Path(f"/proc/{self._pid}/root")

    def _enter(self) -> list[str]:
        return ["nsenter", "-t", str(self._pid), "--mount", "--net", "--uts", "--ipc", "--pid"]

    def run_beside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A program of this machine in the namespaces, where `root` is the folder of this Debian; stderr is in stdout, in order."""
        return subprocess.run(
            [*self._enter(), *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )

    def run(
        self, script: str, *, told: str = "", timeout_s: float = 300.0, folder: str = "/root"
    ) -> subprocess.CompletedProcess[str]:
        """A bash script inside; stderr is in stdout, in order."""
        command = [*self._enter(), "-r", f"-w/proc/{self._pid}/root{folder}"]
        environment = {
            "PATH": PATH,
            "HOME": "/root",
            "DEBIAN_FRONTEND": "noninteractive",
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
        }
        return subprocess.run(
            [*command, "bash", "-ec", script], env=environment, input=told, timeout=timeout_s, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip

    def must(self, script: str, *, told: str = "", timeout_s: float = 300.0) -> str:
        done = self.run(script, told=told, timeout_s=timeout_s)
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}"
        return done.stdout
