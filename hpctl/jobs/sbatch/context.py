"""What a submission depends on and does not itself say: controller, mount table, named policies."""

import os
import re
import subprocess
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from msgspec import Struct, field

from hpctl.jobs.sbatch.options import HpctlOptionValue, ParsedHpctlOptions
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import parse_registration_comment


class PythonRuntime(Struct, frozen=True):
    """How a job reaches hpctl: the interpreter, and PYTHONPATH where hpctl is not installed."""

    python: str
    python_path: str = ""


class SbatchSubmissionContext(Struct, frozen=True):
    """The facts that `submit.build_resumable_submission` needs in addition to the options and the
    script.

    `policy` is the job's own, compact.
    `filesystem` is the type of the one that the checkpoint directory is on, "" where unknown;
    `restarted` are the jobs of --dependency that hpctl may run again, as the option names them.
    `unknown` names what is there in no known format. `missing` are the directories of --output and
    --error that this machine does not have and Slurm does not create, with the option.
    """

    runtime: PythonRuntime
    environment: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, object] = field(default_factory=dict)
    filesystem: str = ""
    unknown: str = ""
    missing: tuple[tuple[str, str], ...] = ()
    restarted: tuple[str, ...] = ()


def read_working_directory() -> str:
    """Return the working directory. Raises HpctlError: it was deleted, or cannot be entered."""
    try:
        return os.getcwd()
    except OSError as error:
        named = os.environ.get("PWD", "")
        shown = f" {named}" if named else ""
        raise HpctlError(
            f"cannot read the working directory{shown}: {error.strerror}",
            "It was deleted, moved or unmounted. Run `cd` to a directory that"
            " exists (again, if the same path was created again), and submit again.",
        ) from None


ASK_S = 5.0
"""What does not answer must not keep a submission waiting that would itself go through."""


_CREATES_DIRECTORIES = (23, 2)
"""The release of Slurm since which the directories of --output and --error are created."""


def can_slurm_create_log_directories(sbatch: str) -> bool:
    """Return whether Slurm creates the directories of a job's logs. False where that is unknown."""
    try:
        done = subprocess.run(
            [sbatch, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(rb"\b(\d{2})\.(\d{2})\b", done.stdout)
    return found is not None and (int(found[1]), int(found[2])) >= _CREATES_DIRECTORIES


_AFTER_AN_END = re.compile(r"\b(?:afterok|afternotok|afterany|aftercorr)((?::[^:,?]+)+)")
"""A part of `afterok:12:13_4+10,afterany:14`."""
_DEPENDED_ON = re.compile(r":(\d+(?:_\d+)?)")


def find_restartable_dependencies(dependency: str, squeue: str) -> tuple[str, ...]:
    """Return the jobs of a --dependency that registered and may be run again. Empty where Slurm
    does not say."""
    parts = _AFTER_AN_END.findall(dependency)
    ids = sorted(set(chain.from_iterable(map(_DEPENDED_ON.findall, parts))))
    if not ids:
        return ()
    command = [squeue, "--noheader", "--states=all", "--format=%i|%k", f"--jobs={','.join(ids)}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found: set[str] = set()
    for line in done.stdout.decode(errors="replace").splitlines():
        job, _, comment = line.partition("|")
        registered = parse_registration_comment(comment)
        if registered is not None and registered.policy.get("restarts") != 0:
            found |= {job, re.split("[_+]", job)[0]}
    return tuple(job for job in ids if job in found)


_SHARED = (
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "glusterfs", "9p",
    "afs", "panfs", "pvfs2", "orangefs", "wekafs", "virtiofs", "ocfs2", "gfs2", "daos", "vastnfs",
)  # fmt: skip
_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "overlay", "squashfs", "aufs")
# /opt/dlami/nvme: where HyperPod's and the deep learning AMIs mount the instance store.
_LOCAL = re.compile(
    r"/(tmp|var/tmp|dev/shm|run|proc|sys|root|opt/dlami/nvme|local|local_?scratch|(mnt/)?nvme\d*"
    r"|(mnt/)?localdisk|raid)(/|$)"
)


def explain_why_directory_is_unshared(directory: str, filesystem: str) -> str:
    """Return why a directory is probably not shared between nodes; "" where nothing says so.

    `filesystem` is its type on the submitting machine, "" where unknown.
    """
    if filesystem in _SHARED or filesystem.startswith("fuse"):
        return ""
    if filesystem in _MEMORY:
        return f"is on {filesystem}, which is this machine's alone"
    found = _LOCAL.match(directory)
    if found:
        return f"is below {found[0].rstrip('/')}, which is this machine's alone"
    if filesystem:
        return f"is on {filesystem}, a disk of this machine, unless it is exported"
    return ""


def find_file_system_type(directory: str, table: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the file system that a directory is or would be on, "" where unknown."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:  # proc_pid_mountinfo(5): field 5 the mount point, the type after " - "
        left, _, right = line.partition(" - ")
        fields, rest = left.split(" "), right.split(" ")
        if len(fields) < 6:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[4])
        inside = os.path.commonpath([point, directory]) == point
        if inside and len(point) >= len(best):  # of two on one point, the later hides the other
            best, kind = point, rest[0]
    return kind


NAMED = "/etc/hpctl/policies"
"""Where a cluster keeps the policies that users may name; $HPCTL_POLICIES says otherwise."""


def load_job_recovery_policy(
    options: ParsedHpctlOptions, environment: Mapping[str, str], cwd: str
) -> dict[str, object]:
    """Return the policy that the job brings along (`--policy`, `--log-rules`), read and checked at
    submit: what goes into its Comment. Raises HpctlError, with the option's place."""
    policy: dict[str, object] = {}
    if options.policy is not None:
        policy |= _read_job_policy_file(options.policy, environment, cwd)
    if options.log_rules:
        policy["log_rules"] = [_resolve_log_rules(each, cwd) for each in options.log_rules]
    return policy


def _read_job_policy_file(
    policy: HpctlOptionValue, environment: Mapping[str, str], cwd: str
) -> dict[str, object]:
    from hpctl.vocabulary import policy_file  # PyYAML: only for a policy

    try:
        return policy_file.read_run_policy_file(
            find_job_policy_file(policy.value, environment, cwd)
        ).compact()
    except HpctlError as error:
        raise HpctlError(f"{policy.place}: {error}", error.hint) from None


def find_job_policy_file(policy: str, environment: Mapping[str, str], cwd: str) -> Path:
    """Return the file that is meant: a path, or the bare name of a policy of the cluster's.

    Raises HpctlError for a name that nothing has; a path is not looked at further.
    """
    path = Path(cwd, os.path.expanduser(policy))
    if path.is_file() or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", policy):
        return path
    named = Path(environment.get("HPCTL_POLICIES") or NAMED)
    found = sorted(named.glob("*.yaml")) if named.is_dir() else []
    for candidate in found:
        if policy in (candidate.stem, candidate.name):
            return candidate
    names = ", ".join(each.stem for each in found)
    raise HpctlError(
        f"cannot find the recovery policy {policy}: there is no such file, and no policy of that "
        f"name in {named}",
        f"Choose one of: {names}." if names else "Give the path of a policy file.",
    )


def _resolve_log_rules(rules: HpctlOptionValue, cwd: str) -> str:
    """Return a preset's name, or the absolute path of a file of rules; both are read to see that
    they can be."""
    from hpctl.jobs.logs.rules import load_log_rule_preset, load_log_rules

    path = Path(cwd, os.path.expanduser(rules.value))
    try:
        if not path.is_file() and "/" not in rules.value:
            load_log_rule_preset(rules.value)
            return rules.value
        load_log_rules(path)
    except HpctlError as error:
        raise HpctlError(f"{rules.place}: {error}", error.hint) from None
    return os.path.abspath(path)
