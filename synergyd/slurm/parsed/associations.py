"""`scontrol show assoc_mgr`: the limits of associations and QOS with what is used of them. Pure.

Slurm prints `limit(used)`, and N for no limit. TRES are counts, MiB of memory, and minutes of them where the name says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_QOS = re.compile(r"QOS=(.+)\(\d+\)\s*\Z")
_PARENT = re.compile(r" +ParentAccount=(.*)\(\d+\) (?:Lft=\d+ |Lineage=/)")  # Lineage from 23.11 on
_RECORD = re.compile(r"\n(?=\S)")
_NAMED = re.compile(r".*\((\d{1,10})\)\Z|(\d{1,10})\Z")  # `mina(1000)`, or `1000`
_PAIR = re.compile(r"\b([A-Za-z]+)=(\S*)")
_WHOLE = re.compile(r"[0-9]{1,10}\Z")
_MEM = re.compile(r"\bmem=(\d{1,12}(?:\.\d{1,6})?)([MGTP])")
_PARTITION = re.compile(r"PartitionName=(\S+) .*? QoS=(\S+)")
QOS_FIELDS = ("Name", "MaxTRESPU", "MaxTRESPA", "MaxJobsPU", "MaxJobsPA", "Flags")
ALL_PRIVATE = frozenset(("accounts", "jobs", "nodes", "usage", "users"))  # all that PrivateData may hide
_VALUE = re.compile(r"(N|\d{1,20})(?:\((\d{1,20}(?:\.\d{1,20})?)\))?\Z")


class Usage(NamedTuple):
    """A limit (None: no limit), and what is used of it."""

    limit: float | None = None
    used: float = 0.0


UNLIMITED = Usage()
Tres = Mapping[str, Usage]  # those limited, by name: cpu, mem, node, gres/gpu, gres/gpu:a100
Key = tuple[str, str, str]  # account, user, partition


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that an association and a QOS have in common.

    `mins`: TRES minutes used up; `run_mins`: TRES minutes that running jobs may yet use, those without a limit too.
    """

    tres: Tres = field(default_factory=dict)
    mins: Tres = field(default_factory=dict)
    run_mins: Tres = field(default_factory=dict)
    jobs: Usage = UNLIMITED
    wall_min: Usage = UNLIMITED
    #: limits of one job
    job_tres: Tres = field(default_factory=dict)
    node_tres: Tres = field(default_factory=dict)
    least_tres: Tres = field(default_factory=dict)
    job_mins: Tres = field(default_factory=dict)
    job_wall_min: float | None = None


@dataclass(frozen=True, kw_only=True)
class Association(Limits):
    """A record of the tree: an account (`user` ""), or a user in it, maybe in one partition alone."""

    account: str
    user: str
    partition: str
    number: int
    #: the account above; "" of the topmost, and of users
    parent: str = ""
    #: Slurm's own fair-share factor, 0 to 1
    fair_share: float | None = None
    #: MaxJobs, of a user
    user_jobs: Usage = UNLIMITED


@dataclass(frozen=True, kw_only=True)
class HolderLimits:
    """The limits of one user's, or one account's, jobs in a QOS."""

    jobs: Usage = UNLIMITED
    tres: Tres = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Qos(Limits):
    """A QOS. Slurm lists only those users and accounts that have had jobs in it."""

    name: str
    users: Mapping[int, HolderLimits] = field(default_factory=dict)  # by uid
    accounts: Mapping[str, HolderLimits] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class QosRules:
    """The rules of a QOS that only slurmdbd tells: its limits of one user and of one account, whoever has jobs."""

    user: HolderLimits = HolderLimits()
    account: HolderLimits = HolderLimits()
    flags: frozenset[str] = frozenset()

    @property
    def over_partition(self) -> bool:
        """Return whether this QOS comes over the QOS of the partition."""
        return "OverPartQOS" in self.flags


@dataclass(frozen=True, kw_only=True)
class AccountingRules:
    """The rules that change seldom: AccountingStorageEnforce, the QOS as slurmdbd has them, and those of partitions, by name."""

    enforcement: frozenset[str] = frozenset()
    #: Slurm takes tokens (AuthAltTypes=auth/jwt): SlurmUser may have one made for any user
    tokens: bool = False
    #: words of PrivateData: hidden from users
    private: frozenset[str] = frozenset()
    qos: Mapping[str, QosRules] = field(default_factory=dict)
    partition_qos: Mapping[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> bool:
        """Return whether Slurm holds jobs to limits."""
        return "limits" in self.enforcement

    @property
    def safe(self) -> bool:
        """Return whether a job starts only if its whole time limit fits into the minutes left."""
        return "safe" in self.enforcement


class Associations:
    """All that Slurm showed. A record is read only when it is asked for: an epoch needs a few out of thousands."""

    def __init__(self, records: Mapping[Key, str] | None = None, qos: Mapping[str, Qos] | None = None) -> None:
        self._records, self._read = records or {}, dict[Key, Association]()
        self.qos = qos or {}

    def find(self, account: str, user: str, partition: str) -> Association | None:
        """Return the association that Slurm counts a job to, or None if there is none (any more)."""
        return self._find_by_key((account, user, partition.split(",")[0])) or self._find_by_key((account, user, ""))

    def chain(self, leaf: Association) -> Iterator[Association]:
        """Yield `leaf`, its account, and the accounts above it."""
        if leaf.user:
            yield leaf
        visited_ids: set[int] = set()
        at = self._find_by_key((leaf.account, "", ""))
        while at is not None and at.number not in visited_ids:
            visited_ids.add(at.number)
            yield at
            at = self._find_by_key((at.parent, "", "")) if at.parent else None

    def keys(self) -> Iterator[Key]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def _find_by_key(self, key: Key) -> Association | None:
        if key not in self._read and key in self._records:
            self._read[key] = _association(key, self._records[key])
        return self._read.get(key)


def parse(text: str) -> Associations:
    """Parse the records of `scontrol show assoc_mgr`. Lines that are not understood are passed over."""
    associations: dict[Key, str] = {}
    qos: dict[str, Qos] = {}
    for record in _RECORD.split(text):
        head, _, lines = record.partition("\n")
        if key_and_id := _read_head(head):
            associations[key_and_id[0]] = record
        elif match := _QOS.match(head):
            qos[match[1]] = _qos(match[1], lines.split("\n"))
    return Associations(associations, qos)


def _read_head(head: str) -> tuple[Key, int] | None:
    """Return (whose, number) from `ClusterName=c Account=chem UserName=mina(1000) Partition= Priority=0 ID=7`."""
    rest, _, number = head.rstrip().rpartition(" ID=")
    if not rest.startswith("ClusterName=") or not _WHOLE.match(number):
        return None
    keys = []
    for word in (" Priority=", " Partition=", " UserName=", " Account="):
        rest, between, value = rest.rpartition(word)
        if not between:
            return None
        keys.append(value)
    _, partition, user, account = keys
    return (account, user.rpartition("(")[0] or user, partition), int(number)


def _association(key: Key, record: str) -> Association:
    account, user, partition = key
    lines = record.split("\n")
    values = _values(lines[1:])
    key_and_id = _read_head(lines[0])
    parent = next((m[1] for line in lines if (m := _PARENT.match(line))), "")
    shares = next((line for line in lines if "SharesRaw/" in line), "")
    return Association(
        account=account,
        user=user,
        partition=partition,
        number=key_and_id[1] if key_and_id else 0,
        parent=parent,
        fair_share=_fraction(shares.rpartition("/")[2].strip()) if user else None,
        user_jobs=usage(values.get("MaxJobs", "")),
        **_common(values),
    )


def _qos(name: str, lines: list[str]) -> Qos:
    holders: dict[str, dict[str, list[str]]] = {"Account": {}, "User": {}}
    own: list[str] = []
    kind, holder = "", ""
    for line in lines:
        text = line.strip()
        if text in ("Account Limits", "User Limits"):
            kind, holder = text.split()[0], ""
        elif not kind:
            own.append(line)
        elif "=" not in text:
            holder = text
        elif holder:
            holders[kind].setdefault(holder, []).append(line)
    users = {int(m[1] or m[2]): _holder(x, "PU") for h, x in holders["User"].items() if (m := _NAMED.match(h))}
    accounts = {h: _holder(x, "PA") for h, x in holders["Account"].items()}
    return Qos(name=name, users=users, accounts=accounts, **_common(_values(own)))


def _holder(lines: list[str], ending: str) -> HolderLimits:
    values = _values(lines)
    return HolderLimits(jobs=usage(values.get(f"MaxJobs{ending}", "")), tres=tres(values.get(f"MaxTRES{ending}", "")))


def _common(values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of Limits."""
    value = values.get
    return {
        "tres": tres(value("GrpTRES", "")),
        "mins": tres(value("GrpTRESMins", "")),
        "run_mins": _all_tres(value("GrpTRESRunMins", "")),
        "jobs": usage(value("GrpJobs", "")),
        "wall_min": usage(value("GrpWall", "")),
        "job_tres": tres(value("MaxTRESPJ", "")),
        "node_tres": tres(value("MaxTRESPN", "")),
        "least_tres": tres(value("MinTRESPJ", "")),
        "job_mins": tres(value("MaxTRESMinsPJ", "")),
        "job_wall_min": usage(value("MaxWallPJ", "")).limit,
    }


def _values(lines: list[str]) -> dict[str, str]:
    """Return every `Key=value`; no value here holds a blank."""
    return {key: value for line in lines for key, value in _PAIR.findall(line)}


def usage(text: str) -> Usage:
    """Parse `4(2)`, `N(0.00)` or `1440`; return UNLIMITED for other text."""
    match = _VALUE.match(text)
    if match is None:
        return UNLIMITED
    return Usage(None if match[1] == "N" else float(match[1]), float(match[2] or 0))


def tres(text: str) -> dict[str, Usage]:
    """Return the limited ones of `cpu=N(0),gres/gpu=8(2)`, which may also come without what is used."""
    return {name: tres for name, tres in _all_tres(text).items() if tres.limit is not None}


def _all_tres(text: str) -> dict[str, Usage]:
    """Return all of them, also those without a limit."""
    pairs = (item.partition("=") for item in text.split(","))
    return {name: usage(value) for name, _, value in pairs if name and _VALUE.match(value)}


def qos_rules(text: str) -> dict[str, QosRules]:
    """Parse the lines of `sacctmgr -nP show qos` with the fields QOS_FIELDS."""
    rules = {}
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) == len(QOS_FIELDS) and cells[0]:
            user, account, user_jobs, account_jobs, flags = cells[1:]
            rules[cells[0]] = QosRules(
                user=HolderLimits(jobs=usage(user_jobs), tres=tres(_in_mib(user))),
                account=HolderLimits(jobs=usage(account_jobs), tres=tres(_in_mib(account))),
                flags=frozenset(flags.split(",")) - {""},
            )
    return rules


def enforcement_words(config: str) -> frozenset[str]:
    """Return the words of AccountingStorageEnforce in `scontrol show config`."""
    match = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", config, re.MULTILINE)
    return frozenset(match[1].lower().split(",")) - {"none"} if match else frozenset()


def private_data(config: Mapping[str, str]) -> frozenset[str]:
    """Return what PrivateData in the values of `scontrol show config` hides from users."""
    words = frozenset(word.strip() for word in config.get("PrivateData", "").lower().split(","))
    return ALL_PRIVATE if "all" in words else words & ALL_PRIVATE


def has_slurmdbd(config: str) -> bool:
    """Return whether AccountingStorageType in `scontrol show config` names slurmdbd."""
    return re.search(r"^AccountingStorageType\s*=\s*\S*slurmdbd\s*$", config, re.MULTILINE) is not None


def takes_tokens(config: str) -> bool:
    """Return whether AuthAltTypes in `scontrol show config` names auth/jwt."""
    match = re.search(r"^AuthAltTypes\s*=\s*(\S+)", config, re.MULTILINE)
    return match is not None and "auth/jwt" in match[1].lower().split(",")


def partition_qos(text: str) -> dict[str, str]:
    """Return the QOS by partition, from `scontrol show partition -o`."""
    matches = (_PARTITION.match(line) for line in text.splitlines())
    return {match[1]: match[2] for match in matches if match and match[2] != "N/A"}


def _in_mib(text: str) -> str:
    """Return `mem=50G` as `mem=51200`: sacctmgr writes units."""
    return _MEM.sub(lambda m: f"mem={int(float(m[1]) * 1024 ** 'MGTP'.index(m[2]))}", text)


def _fraction(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d(\.\d{1,20})?", text) else None
