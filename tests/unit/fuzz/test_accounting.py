"""What Slurm shows of its accounting, near to the real thing: every record that is read has sound numbers."""

from __future__ import annotations

import math

from synergyd.slurm.parsed.associations import Associations, Limits, enforcement_words, parse, partition_qos, qos_rules
from tests.paths import ROOT
from tests.unit.fuzz.checking import refused
from tests.unit.fuzz.generators import mutations

SHOWN = (ROOT / "tests" / "cases" / "golden" / "assoc_mgr.txt").read_bytes()
ACCOUNT = SHOWN[SHOWN.index(b"ClusterName=throwaway Account=chem") :][:2200]  # and a user in it
QOS = SHOWN[SHOWN.index(b"QOS=high") :]


def sound(found: Associations) -> None:
    for key in list(found.keys()):
        leaf = found.find(*key)
        assert leaf is not None
        chain = list(found.chain(leaf))
        assert len(chain) <= len(found) + 1
        assert leaf.fair_share is None or 0 <= leaf.fair_share < 10
        for record in chain:
            limits(record)
    for qos in found.qos.values():
        limits(qos)


def limits(record: Limits) -> None:
    for tres in (record.tres, record.mins, record.run_mins, record.job_tres, record.node_tres, record.job_mins):
        for usage in tres.values():
            assert usage.limit is None or 0 <= usage.limit < math.inf
            assert 0 <= usage.used < math.inf


def test_assoc_mgr() -> None:
    some = 0
    for given in mutations([ACCOUNT, QOS, ACCOUNT + QOS], 2_000, 14):
        text = given.decode(errors="replace")
        assert refused(parse, text, ()) == ""
        found = parse(text)
        sound(found)
        some += len(found) > 0
    assert some > 1_000


def test_what_changes_seldom() -> None:
    qos = b"normal||||||\nhigh|cpu=40,mem=50G,gres/gpu=6|gres/gpu=7|2|3|DenyOnLimit,OverPartQOS\n"
    config = b"AccountingStorageEnforce = associations,limits,qos,safe\nAccountingStorageHost = x\n"
    partition = b"PartitionName=main AllowGroups=ALL AllowQos=ALL Default=YES QoS=part DefaultTime=NONE\n"
    for read, example in ((qos_rules, qos), (enforcement_words, config), (partition_qos, partition)):
        assert all(refused(read, given.decode(errors="replace"), ()) == "" for given in mutations([example], 1_000, 15))
