"""Settings out of slurm.conf."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synergy_core.errors import UsageError

from synergyd.cli.config import rows
from synergyd.settings import REMOVED, SETTINGS, TABLE, Settings
from synergyd.slurm.directives import conf
from synergyd.slurm.directives.conf import find_slurm_conf, load_settings, with_values
from synergyd.slurm.directives.conf_lint import lint
from tests.unit.plugin.lua_runtimes import ROOT
from tests.unit.slurm.directives.conf_world import GOOD, load, said


def test_without_a_line_all_is_default(folder: Path) -> None:
    loaded = load(folder, GOOD)
    assert (loaded.settings, dict(loaded.origins), loaded.problems) == (Settings(), {}, ())


def test_every_key(folder: Path) -> None:
    loaded = load(
        folder,
        "#SYNERGY Database=postgresql+psycopg://u@h/db Epoch=5m Partitions=gpu,user/mina Policy=sia\n"
        "  #SYNERGY\tFairness=-2.5 RestartCost=90 RestartShare=0.05 Preemption=no # seconds\n"
        "#SYNERGY DRYRUN=Yes Profile=/etc/x.profile StateDir='/var/lib/my synergy'\r\n"
        "#SYNERGY MetricsPort=9100 ReportPort=9101 ReportHost=ctl.example.org\n"
        "#SYNERGY LinkArbiterPort=9102 LinkArbiterRule=srsf-2\n"
        "#SYNERGY CheckpointTimeout=2.5m RestartDelay=3s Park=1h FirstStart=3\n"
        "#SYNERGY HangTimeout=20m IdleReclaim=60m DrainSlow=yes Live=no\n"
        "#SYNERGY MaxResizes=3 QuietHours=08:00-18:00 RestPort=9103\n"
        "#SYNERGY FairnessBound=1.5 ShortFirst=.25 PriorityWeight=yes\n"
        "#SYNERGY LinkAware=yes NodeLink=2x25GbE LeafUplink=100gbe Placement=lwf-2\n"
        "#SYNERGY AccountLimits=chem:64 MaxWeight=4 DeadlineShare=2\n"
        "#SYNERGY NoticeUrl=https://h.example.org:8443/x?y=z\n"
        "#SYNERGY SpareNodes=gpu:1,debug:5%,qos/high:2\n"
        "#SYNERGY MailProg=/usr/bin/mail\n"
        "#SYNERGY GpuType=a100 peak_tflops=312 memory_gib=80 bandwidth_gbs=2000 intra_gbs=300 inter_gbs=25\n"
        "#SYNERGY GpuType=l4 peak_tflops=121.5\n",
    )
    assert said(loaded) == []
    assert loaded.settings == Settings(
        database="postgresql+psycopg://u@h/db",
        epoch_s=300,
        partitions=("gpu", "user/mina"),
        policy="sia",
        fairness=-2.5,
        restart_cost_s=90,
        restart_share=0.05,
        preemption=False,
        dry_run=True,
        profile=Path("/etc/x.profile"),
        state_dir=Path("/var/lib/my synergy"),
        metrics_port=9100,
        report_port=9101,
        report_host="ctl.example.org",
        link_arbiter_port=9102,
        link_arbiter_rule="srsf-2",
        checkpoint_timeout_s=150,
        restart_delay_s=3,
        park_s=3600,
        first_start=3,
        hang_timeout_s=1200,
        idle_reclaim_s=3600,
        drain_slow=True,
        live=False,
        max_resizes=3,
        quiet_hours=((480, 1080),),
        spare_nodes={"gpu": 1.0, "debug": 0.05, "qos/high": 2.0},
        rest_port=9103,
        fairness_bound=1.5,
        short_first=0.25,
        max_weight=4,
        deadline_share=2,
        priority_weight="yes",
        account_limits={"chem": 64},
        placement="lwf-2",
        link_aware=True,
        node_link="2x25gbe",
        leaf_uplink="100gbe",
        notice_url="https://h.example.org:8443/x?y=z",
        mail_prog=Path("/usr/bin/mail"),
        gpu_figures={
            "a100": {
                "peak_tflops": 312,
                "memory_gib": 80,
                "bandwidth_gbs": 2000,
                "intra_gbs": 300,
                "inter_gbs": 25,
            },
            "l4": {"peak_tflops": 121.5},
        },
    )
    assert {setting.field for setting in SETTINGS} | {"gpu_figures.a100", "gpu_figures.l4"} == set(loaded.origins)
    assert loaded.origins["park_s"] == f"{folder}/slurm.conf:6"


def test_a_key_is_there_or_removed() -> None:
    assert len(TABLE) <= 41, "Policy leaves too"
    assert not {key.lower() for key in REMOVED} & {key.lower() for key in conf.KEYS}


def test_spares_of_partitions_and_of_qos() -> None:
    settings = Settings(spare_nodes={"gpu": 1.0, "qos/high": 2.0})
    assert (settings.partition_spare_nodes, settings.qos_spare_nodes) == ({"gpu": 1.0}, {"high": 2.0})


def test_partitions_without_users_and_accounts() -> None:
    settings = Settings(partitions=("gpu", "user/mina", "account/physics"))
    assert settings.partition_names == ("gpu",)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("#SYNERGY NoticeUrl=http://example.org/x", "NoticeUrl"),
        ("#SYNERGY NoticeUrl=http://127.0.0.1.example.org/", "NoticeUrl"),
        ("#SYNERGY NoticeUrl=https://u:p@example.org/", "NoticeUrl"),
        ("#SYNERGY NoticeUrl=file:///etc/passwd", "NoticeUrl"),
        ("#SYNERGY Epock=5", "unknown key Epock; did you mean Epoch?"),
        ("#SYNERGY Colour=red", "unknown key Colour; known keys: Database, Epoch, Partitions, DryRun, "),
        ("#SYNERGY peak_tflops=3", "unknown key peak_tflops; write GpuType=NAME peak_tflops=... on one line"),
        ("#SYNERGY Epoch=0", "Epoch=0 is not right; Epoch takes 1 s to 1 day, such as 60, 60s or 5m"),
        ("#SYNERGY Epoch=5weeks", "Epoch=5weeks is not right; "),
        (
            "#SYNERGY MaxResizes=-1",
            "MaxResizes=-1 is not right; MaxResizes takes a whole number to 99999, 0 for no bound",
        ),
        (
            "#SYNERGY QuietHours=8-18",
            "QuietHours=8-18 is not right; QuietHours takes spans of the day with commas between",
        ),
        ("#SYNERGY Fairness=2", "Fairness=2 is not right; "),
        ("#SYNERGY Fairness=nan", "Fairness=nan is not right; "),
        ("#SYNERGY DryRun=maybe", "DryRun=maybe is not right; DryRun takes yes or no"),
        ("#SYNERGY StateDir=var/lib", "StateDir=var/lib is not right; StateDir takes an absolute path"),
        ("#SYNERGY StateDir=/var/../etc", "StateDir=/var/../etc is not right; "),
        ("#SYNERGY MetricsPort=65536", "MetricsPort=65536 is not right; "),
        ("#SYNERGY ReportHost=$(id)", "ReportHost=$(id) is not right; "),
        ("#SYNERGY Partitions=a,,b", "Partitions=a,,b is not right; "),
        (
            "#SYNERGY Partitions=user/",
            "Partitions=user/ is not right; Partitions takes PARTITION, user/NAME or account/NAME",
        ),
        ("#SYNERGY Partitions=group/x", "Partitions=group/x is not right; "),
        ("#SYNERGY Partitions=user/a,user/a", "Partitions=user/a,user/a is not right; "),
        ("#SYNERGY Policy=../x", "Policy=../x is not right; "),
        ("#SYNERGY FairnessBound=0.5", "FairnessBound=0.5 is not right; "),
        ("#SYNERGY AccountLimits=a:1,a:2", "AccountLimits=a:1,a:2 is not right; "),
        ("#SYNERGY Placement=best", "Placement=best is not right; Placement takes pack or lwf-N"),
        ("#SYNERGY AccountLimits=x:1.5", "AccountLimits=x:1.5 is not right; "),
        ("#SYNERGY Policy=best", "Policy=best is not right; Policy takes one of: synergy, exact, fifo, first-fit, "),
        ("#SYNERGY NodeLink=2gbe", "NodeLink=2gbe is not right; NodeLink takes 1gbe, 10gbe, 25gbe, 100gbe, ib-edr, "),
        ("#SYNERGY NodeLink=0x10gbe", "NodeLink=0x10gbe is not right; "),
        ("#SYNERGY LeafUplink=fast", "LeafUplink=fast is not right; LeafUplink takes none, or 1gbe, "),
        ("#SYNERGY Database=mysql://u:geheim@h/d", "Database is not right; Database takes sqlite:"),
        ("#SYNERGY Database=geheim", "Database is not right; "),
        ("#SYNERGY Epoch", "the line can't be read (no value); "),
        ("#SYNERGY StateDir='/x", "the line can't be read (unclosed); "),
        ("#SYNERGY Policy=a\x1b[31m", "the line can't be read (character); "),
        ("#SYNERGY Epoch=nan", "Epoch=nan is not right; Epoch takes 1 s to 1 day"),
        ("#SYNERGY Epoch=inf", "Epoch=inf is not right; "),
        ("#SYNERGY Fairness=nan", "Fairness=nan is not right; Fairness takes a number from -100"),
        ("#SYNERGY RestartCost=-1", "RestartCost=-1 is not right; "),
        (
            "#SYNERGY FirstStart=.5",
            "FirstStart=.5 is not right; FirstStart takes 0 (no bound), or 1 and more, such as 4",
        ),
        ("#SYNERGY FairnessBound=0.5", "FairnessBound=0.5 is not right; "),
        ("#SYNERGY LeafUplink=0x10gbe", "LeafUplink=0x10gbe is not right; LeafUplink takes none, or 1gbe, 10gbe"),
        ("#SYNERGY NodeLink=nvlink4", "NodeLink=nvlink4 is not right; NodeLink takes 1gbe, 10gbe, "),
        ("#SYNERGY NodeLink=none", "NodeLink=none is not right; "),
        ("#SYNERGY Database=sqlite", "Database is not right; "),
        ("#SYNERGY Database=sqlite://h:geheim/x", "Database is not right; "),
        ("#SYNERGY GpuType=a100", "GpuType=a100 has no figures; "),
        ("#SYNERGY GpuType=a100 tflops=1", "unknown figure tflops of GpuType=a100; known figures: peak_tflops, "),
        ("#SYNERGY GpuType=a100 memory_gb=1", "unknown figure memory_gb of GpuType=a100; did you mean memory_gib?"),
        ("#SYNERGY GpuType=a100 memory_gib=0", "memory_gib=0 of GpuType=a100 is not right; "),
        ("#SYNERGY GpuType=a100 memory_gib=1 memory_gib=2", "memory_gib=2 of GpuType=a100 is not right; "),
        ("#SYNERGY memory_gib=1 GpuType=a100", "GpuType does not begin the line with a type's name; "),
        ("#synergy Epoch=5", "the line is not read; write it as #SYNERGY Key=Value"),
        ("# SYNERGY Epoch=5", "the line is not read; "),
        ("SYNERGY Epoch=5", "SYNERGY without # stops every Slurm command; "),
        ("Include *.conf", "Include *.conf: not the name of one file; "),
        ("Include slurm.conf", "Include slurm.conf: it includes itself; drop this line"),
        ("Include absent.conf", "Include absent.conf can't be read (No such file or directory); "),
        ("Include .", "Include . can't be read (not a file); "),
    ],
)
def test_a_wrong_line_is_said_and_has_no_effect(folder: Path, line: str, problem: str) -> None:
    loaded = load(folder, GOOD + line + "\n")
    assert loaded.settings == Settings()
    assert len(loaded.problems) == 1 and loaded.problems[0].severity == "error"
    assert said(loaded)[0].startswith(f"error: slurm.conf:9: {problem}")
    assert "geheim" not in said(loaded)[0] and said(loaded)[0].isprintable()


@pytest.mark.parametrize(
    ("text", "link"),
    [("eth-10", "10gbe"), ("2xETH-25", "2x25gbe"), ("4x10GbE", "4x10gbe"), ("1x100gbe", "100gbe"), ("roce-200", "roce-200")],
)  # fmt: skip
def test_links_by_any_spelling(folder: Path, text: str, link: str) -> None:
    loaded = load(folder, f"#SYNERGY NodeLink={text} LeafUplink={text}\n")
    assert (loaded.settings.node_link, loaded.settings.leaf_uplink, loaded.problems) == (link, link, ())


@pytest.mark.parametrize("key", [key for key in (*REMOVED, "guaranteedprice", "qosspareNodes") if "=" not in key])
def test_a_key_of_the_release_before_is_told_and_no_error(folder: Path, key: str) -> None:
    loaded = load(folder, f"#SYNERGY {key}=1 Epoch=7\n")
    right = next(right for name, right in REMOVED.items() if name.lower() == key.lower())
    line = f"warning: slurm.conf:1: {key} has no effect any more; {right}"
    assert (said(loaded), loaded.errors(), loaded.settings) == ([line], (), Settings(epoch_s=7))


@pytest.mark.parametrize("text", ["Placement=dally", "placement=quiet", "LinkArbiterRule=srsf-2-time"])
def test_a_value_of_the_release_before_is_told_and_no_error(folder: Path, text: str) -> None:
    loaded = load(folder, f"#SYNERGY {text}\n")
    (line,) = said(loaded)
    assert line.startswith(f"warning: slurm.conf:1: {text} has no effect any more; write ")
    assert (loaded.errors(), loaded.settings) == ((), Settings())


def test_the_first_of_two_holds(folder: Path) -> None:
    loaded = load(
        folder, "Include a.conf\n#SYNERGY epoch=30\n", a="#SYNERGY Epoch=20\n#SYNERGY GpuType=x memory_gib=1\n" * 2
    )
    assert loaded.settings.epoch_s == 20
    assert [problem.where.rpartition("/")[2] for problem in loaded.problems] == ["a.conf:3", "a.conf:4", "slurm.conf:2"]


def test_two_ports_that_are_one(folder: Path) -> None:
    loaded = load(folder, "#SYNERGY MetricsPort=90\n#SYNERGY ReportPort=90\n")
    assert (loaded.settings.metrics_port, loaded.settings.report_port) == (0, 90)
    assert said(loaded) == ["error: slurm.conf:1: MetricsPort=90 is also the ReportPort; give each its own port"]


@pytest.mark.parametrize("key", ["MetricsPort", "LinkArbiterPort"])
def test_a_port_that_is_the_default_of_another(folder: Path, key: str) -> None:
    loaded = load(folder, f"#SYNERGY {key}=7321\n")
    assert loaded.settings == Settings()
    assert said(loaded) == [f"error: slurm.conf:1: {key}=7321 is also the ReportPort; give each its own port"]


def test_includes_are_read_in_their_place_beside_slurm_conf(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "b.conf").write_text("#SYNERGY Epoch=7\ninclude c.conf\n")
    absolute = folder / "d.conf"
    loaded = load(
        folder, f'Include sub/b.conf # remark\nINCLUDE "{absolute}"\n', c="#SYNERGY Park=8\n", d="#SYNERGY Fairness=1\n"
    )
    assert said(loaded) == []
    assert dict(loaded.origins) == {
        "epoch_s": f"{folder}/sub/b.conf:1",
        "park_s": f"{folder}/c.conf:1",
        "fairness": f"{folder}/d.conf:1",
    }
    assert len(loaded.files) == 4


def test_a_files_name_may_hold_that_of_the_cluster(folder: Path) -> None:
    text = "# ClusterName=no\nSlurmUser=root ClusterName=Big\nInclude %c.conf\n"
    loaded = load(folder, text, big="#SYNERGY Epoch=7\nSlurmctldHost=h\n")
    assert (loaded.settings.epoch_s, loaded.controllers, said(loaded)) == (7, ("h",), [])
    late = said(load(folder, "Include %c.conf\nClusterName=Big\n"))
    assert late == [
        "error: slurm.conf:1: Include %c.conf: %c stands for the ClusterName, which no line before says; write ClusterName above it"
    ]


def test_a_line_goes_on_behind_a_backslash_as_in_slurm(folder: Path) -> None:
    text = "SlurmctldHo\\\nst=a(10.0.0.1)\nSlurmctldHost=b \\ \n# remark \\\nSlurmctldHost=c\nClusterName=x\\\\\nSlurmctldHost=d\n"
    assert load(folder, text).controllers == ("10.0.0.1", "b", "c", "d")


def test_a_circle_of_includes_ends(folder: Path) -> None:
    loaded = load(folder, "Include a.conf\n", a="Include b.conf\n#SYNERGY Epoch=5\n", b="Include a.conf\n")
    assert loaded.settings.epoch_s == 5
    assert said(loaded) == ["error: b.conf:1: Include a.conf: it includes itself; drop this line"]


def test_links_that_point_at_each_other_are_a_problem_only(folder: Path) -> None:
    (folder / "x").symlink_to("y")
    (folder / "y").symlink_to("x")
    assert len(load(folder, "Include x\n").problems) == 1


@pytest.mark.parametrize("kind", ["absent", "folder", "unreadable bytes"])
def test_slurm_conf_itself(folder: Path, kind: str) -> None:
    path = folder / "other.conf"
    if kind == "unreadable bytes":
        path.write_bytes(b"\xff\xfe#SYNERGY Epoch=5\n#SYNERGY Policy=\xff\n")
        assert [problem.where for problem in load_settings(path).problems] == [f"{path}:2"]
        return
    with pytest.raises(UsageError, match=r"can't be read \(.*\); set SLURM_CONF"):
        load_settings(path if kind == "absent" else folder)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.text(max_size=20)
        | st.builds(
            lambda key, value: f"#SYNERGY {key}={value}",
            st.sampled_from([*conf.KEYS, "GpuType=a memory_gib", ""]),
            st.text(max_size=12) | st.sampled_from(["1", "60s", "/x", "sqlite://", "yes"]),
        ),
        max_size=8,
    )
)
def test_any_file_gives_settings_and_lint(folder: Path, lines: list[str]) -> None:
    path = folder / "slurm.conf"
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    loaded = load_settings(path)
    for problem in (*loaded.problems, *lint(path, loaded)):
        assert "\n" not in str(problem)
    assert len(rows(loaded)) >= len(SETTINGS)


def test_the_shipped_example_says_the_defaults(folder: Path) -> None:
    example = (ROOT / "slurm_plugins" / "synergy.conf").read_text()
    assert load(folder, "Include synergy.conf\n", synergy=example).origins == {}
    loaded = load(folder, "Include synergy.conf\n", synergy=example.replace("# #SYNERGY", "#SYNERGY"))
    assert said(loaded) == []
    assert {setting.field for setting in SETTINGS} < set(loaded.origins)
    # without a line: all, this host, built in, none, no weights, no limits
    free: dict[str, object] = {"partitions": (), "report_host": "", "gpu_figures": {}, "profile": None}
    free |= {"notice_url": "", "mail_prog": None}
    free |= {"spare_nodes": {}, "quiet_hours": (), "account_limits": {}}
    shown = {**vars(loaded.settings), **free}
    assert shown.pop("database") == Settings().database_url()
    assert shown == {name: value for name, value in vars(Settings()).items() if name != "database"}


def test_finding_slurm_conf(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "slurm.conf"
    path.write_text("")
    other = folder / "other.conf"
    other.write_text("")
    monkeypatch.setenv("SLURM_CONF", str(path))
    assert find_slurm_conf() == path
    monkeypatch.setenv("SLURM_CONF", str(folder / "none"))
    with pytest.raises(UsageError, match=r"SLURM_CONF: .*none is no file"):
        find_slurm_conf()
    monkeypatch.delenv("SLURM_CONF")
    # A scontrol that answers as Slurm's does.
    scontrol = folder / "scontrol"
    scontrol.write_text(f"#!/bin/sh\necho 'SLURMCTLD_PORT          = 6817'\necho 'SLURM_CONF              = {path}'\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr(conf, "DEFAULT_SLURM_CONF", other)
    assert find_slurm_conf() == path
    scontrol.write_text("#!/bin/sh\nexit 1\n")
    assert find_slurm_conf() == other
    other.unlink()
    with pytest.raises(UsageError, match=r"slurm\.conf: not found"):
        find_slurm_conf()


def test_a_scontrol_that_hangs_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("scontrol", 10)

    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(subprocess, "run", hang)
    monkeypatch.setattr(conf, "DEFAULT_SLURM_CONF", folder / "job_submit.lua")
    assert find_slurm_conf() == folder / "job_submit.lua"


def test_values_over_settings_as_slurm_conf_writes_them() -> None:
    found = with_values(Settings(epoch_s=30), "--set", ["shortfirst=0", "Fairness=-3"])
    assert found == Settings(epoch_s=30, short_first=0.0, fairness=-3.0)
    for text, what in {
        "ShortFirst": "is no Key=Value",
        "ShortFirst=3": "ShortFirst=3 is not right",
        "MaxGrowth=2": "no effect",
    }.items():
        with pytest.raises(UsageError, match=f"^--set: .*{what}"):
            with_values(Settings(), "--set", [text])
    with pytest.raises(UsageError, match="given twice"):
        with_values(Settings(), "--set", ["Epoch=60", "epoch=30"])
