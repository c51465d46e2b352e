"""`hpctl run`: supervise the steps of this job."""

from __future__ import annotations

import json
import os
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.jobs.arguments import complete_log_rule_file_paths
from hpctl.toolkit.arguments import convert_errors_to_usage_errors
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.errors import HpctlError

if TYPE_CHECKING:
    from hpctl.jobs.logs.rules import LogRuleSet
    from hpctl.vocabulary.policy_file import RunPolicyFile

_FILE = click.Path(path_type=Path, readable=False)  # who reads it says what is wrong with it


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS] --",
    short_help="Run a step that comes back on healthy nodes.",
)
@click.option("--spares", type=click.IntRange(0), metavar="K", help="Nodes to keep for later.")
@click.option("--nodes", default="", metavar="N|MIN-MAX", help="Nodes of a step; elastic range.")
@click.option("--policy", type=_FILE, metavar="FILE", help="A recovery policy of this job's own.")
@click.option(
    "--log-rules",
    multiple=True,
    metavar="NAME|FILE",
    help="Log rules to watch with.",
    shell_complete=complete_log_rule_file_paths,
)
@click.option("--log", multiple=True, type=_FILE, metavar="FILE", help="Another file to watch.")
@click.option("--torch", is_flag=True, help="Restart dead ranks inside the step (PyTorch).")
@click.option("--nproc", type=int, default=0, metavar="N", help="With --torch: ranks a node.")
@click.option(
    "--in-process", is_flag=True, help="With --torch: after an exception keep the processes."
)
@click.option("--slurm-bin", type=_FILE, metavar="DIR", help="Where srun is.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="SRUN-ARGS COMMAND")
def run(
    spares: int | None,
    nodes: str,
    policy: Path | None,
    log_rules: tuple[str, ...],
    log: tuple[Path, ...],
    torch: bool,
    nproc: int,
    in_process: bool,
    slurm_bin: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Run a step of this job, and run it again where that helps.

    Inside a job: launches `srun SRUN-ARGS COMMAND` on all nodes of the allocation but the
    spares. When a node is lost, the program crashes or hangs, the next step starts on healthy
    nodes of the same allocation, from the last complete checkpoint. See docs/run.md.
    """
    from hpctl.jobs.crash import classify_crash
    from hpctl.jobs.run.settings import RankLauncherSettings, read_run_settings
    from hpctl.jobs.run.srun import StepLauncher, parse_srun_command
    from hpctl.jobs.run.supervise import StepSupervisor
    from hpctl.vocabulary.policy_file import merge_run_policy_files

    if in_process and not torch:
        raise click.UsageError("--in-process works only with --torch: add --torch")
    with convert_errors_to_usage_errors():
        asked, own = parse_srun_command(arguments), _load_job_policy(policy)
        watched = _load_log_rules_by_name((*merge_run_policy_files(own).log_rules, *log_rules))
    given = read_run_settings(
        asked,
        os.environ,
        own,
        nodes=nodes,
        spares=spares,
        rules=watched,
        logs=log,
        torch=RankLauncherSettings(nproc or _read_ranks_per_node(), in_process) if torch else None,
    )
    where = os.environ.get("HPCTL_SLURM_BIN")
    launcher = StepLauncher(given.job, slurm_bin or (Path(where) if where else None))
    raise SystemExit(
        StepSupervisor(given, launcher, classify_crash, _print_supervisor_log_line).run()
    )


def _read_ranks_per_node() -> int:
    """Return the batch script's tasks a node, which are ranks; 0 where it has none."""
    tasks = os.environ.get("SLURM_NTASKS_PER_NODE", "")
    return int(tasks) if tasks.isdecimal() and int(tasks) > 1 else 0


def _load_job_policy(path: Path | None) -> list[RunPolicyFile]:
    """Return the job's policy: what it was submitted with, and the file over it."""
    from hpctl.vocabulary.policy_file import parse_run_policy_json, read_run_policy_file

    files = []
    exported = os.environ.get("HPCTL_POLICY")
    if exported:
        try:
            files.append(parse_run_policy_json(json.loads(exported)))
        except ValueError as error:
            raise HpctlError(
                "cannot parse the recovery policy in the environment variable HPCTL_POLICY: "
                f"{error}",
                "Unset HPCTL_POLICY; only hpctl sbatch sets it.",
            ) from error
    if path is not None:
        files.append(read_run_policy_file(path))
    return files


def _load_log_rules_by_name(names: tuple[str, ...]) -> LogRuleSet | None:
    """Return the log rules of presets and files, None without any. Raises HpctlError."""
    from hpctl.jobs.logs.rules import LogRuleSet, load_log_rule_preset, load_log_rules
    from hpctl.vocabulary.log_presets import PRESETS

    # A preset's name first: those of a policy were settled when the job was submitted, elsewhere.
    files = {n for n in names if n not in PRESETS and ("/" in n or Path(n).is_file())}
    found = [load_log_rules(Path(n)) if n in files else load_log_rule_preset(n) for n in names]
    if not found:
        return None
    return LogRuleSet(tuple(chain.from_iterable(one.rules for one in found)))


def _print_supervisor_log_line(line: str) -> None:
    print(make_printable(line, lines=True), file=sys.stderr, flush=True)
