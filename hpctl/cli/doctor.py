"""`hpctl doctor`: is everything there that hpctl needs, and set as it should be?"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import pwd
import secrets
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpctl.cli.daemon_user import (
    FIX,
    find_slurm_user,
    find_systemd_unit_user,
    list_files_needing_permission_changes,
    list_unreadable_paths,
)
from hpctl.engine import config_loading
from hpctl.engine.config import Config
from hpctl.engine.instance_resolver import match_instances_to_nodes_once
from hpctl.engine.plan import ESCALATED, GATE
from hpctl.engine.state_disk import (
    describe_full_state_filesystem,
    find_filesystem_mount_for_path,
    find_world_writable_directories,
)
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CheckView, DoctorView, choose_doctor_exit_code
from hpctl.toolkit.durations import format_duration
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.tables import format_age
from hpctl.vocabulary.cloud_facts import CloudProviderView, InstanceStatus
from hpctl.vocabulary.pause import find_active_pauses
from hpctl.vocabulary.policy import OperatingMode
from hpctl.vocabulary.slurm_facts import SchedulerView
from hpctl.wire.heads import list_slurm_conf_paths
from hpctl.wire.munge import decode_munge_credential, encode_munge_credential

if TYPE_CHECKING:
    from hpctl.slurm.cli import CliScheduler


def check_configuration_file(path: str) -> tuple[Config | None, CheckView]:
    """Read the configuration, which is the first check."""
    try:
        config = config_loading.load_config(path)
    except HpctlError as error:
        return None, CheckView("configuration", "fail", str(error), error.hint)
    return config, CheckView("configuration", "ok", f"{path}, mode {config.mode}", "")


@click.command()
@output.json_option
@output.config_option
def doctor(config: str, as_json: bool) -> None:
    """Check this cluster's settings and name the fixes.

    Changes nothing. Exit code: 0 fine or only warnings, 1 a check failed, 3 a check cannot tell.
    """
    at = output.get_current_utc_time()
    loaded, first = check_configuration_file(config)
    view = DoctorView(at, (first, *run_doctor_checks(loaded, at)))
    output.show_view("doctor", view, as_json)
    output.exit_with_code(choose_doctor_exit_code(view))


Version = tuple[int, int, int]


ANSWERS = timedelta(seconds=30)
"""A reading of Slurm shows for so long that slurmctld answers."""


class DoctorCheckInputs:
    """What several checks look at, each read once.

    Slurm's nodes and jobs are the daemon's where one answers. slurm.conf and the cloud are read
    here: whether they can be, with these settings, is what is checked.
    """

    def __init__(self, config: Config, now: datetime) -> None:
        self.config = config
        self.now = now

    @functools.cached_property
    def daemon_slurm_view(self) -> SchedulerView | None:
        """Return what the daemon has read of Slurm within ANSWERS; None where none answers, it
        cannot read Slurm, or has not for longer: at rest it leaves slurmctld alone."""
        from hpctl.engine.world_client import WorldClient, WorldUnavailableError

        try:
            found = WorldClient(self.config).read_scheduler_view()
        except WorldUnavailableError:
            return None
        return None if found is None or self.now - found.as_of > ANSWERS else found

    @functools.cached_property
    def scheduler(self) -> tuple[CliScheduler, str]:
        """Return the adapter that a daemon uses, and why it is that one. Raises HpctlError."""
        from hpctl.engine.adapters import choose_slurm_client_for_daemon

        return choose_slurm_client_for_daemon(self.config)

    @functools.cached_property
    def slurm(self) -> SchedulerView:
        """Slurm's nodes and jobs. Raises Unavailable."""
        return self.daemon_slurm_view or self.scheduler[0].view()

    @functools.cached_property
    def cloud(self) -> CloudProviderView:
        """Return the cloud's instances. Raises Unavailable."""
        from hpctl.engine.adapters import make_cloud_provider

        return make_cloud_provider(self.config).view()


Check = Callable[[DoctorCheckInputs], Iterable[CheckView]]


def run_doctor_checks(config: Config | None, now: datetime) -> tuple[CheckView, ...]:
    """Run every check in order. Without a configuration only those that need none."""
    from hpctl.cli.features import list_feature_doctor_checks

    found = [*check_system_clock()]
    if config is None:
        return (*found, *check_munge(None))
    facts = DoctorCheckInputs(config, now)
    others = list_feature_doctor_checks()
    checks = [(name, functools.partial(check, facts)) for name, check in CHECKS]
    checks += [(name, functools.partial(check, config, now)) for name, check in others.items()]
    for name, check_now in checks:
        try:
            found.extend(check_now())
        except ServiceUnavailable as error:
            found.append(CheckView(name, "unknown", str(error), error.hint))
        except HpctlError as error:
            found.append(CheckView(name, "fail", str(error), error.hint))
    return tuple(found)


SLURM_COMMANDS = ("scontrol", "squeue", "sinfo", "sbatch")


def check_slurm_commands(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """Slurm's commands are where the configuration says."""
    config = facts.config
    where = str(config.slurm.bin) if config.slurm.bin else None
    missing = [c for c in SLURM_COMMANDS if shutil.which(c, path=where) is None]
    place = where or "PATH"
    if missing:
        hint = "install slurm-client, or set slurm.bin to the folder that has them"
        yield CheckView("slurm commands", "fail", f"not in {place}: {', '.join(missing)}", hint)
    else:
        found = Path(str(shutil.which(SLURM_COMMANDS[0], path=where))).parent
        yield CheckView("slurm commands", "ok", f"all in {where or found}", "")


def check_slurmctld(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """By which adapter Slurm is read, and that slurmctld answers."""
    scheduler, adapter = facts.scheduler
    yield CheckView("slurm adapter", "ok", adapter, "")
    started = time.monotonic()
    try:
        view = facts.slurm
    except ServiceUnavailable:
        installed = _read_slurmctld_version(facts.config)
        if installed:
            yield from check_slurm_versions(scheduler.version(), installed, answers=False)
        raise
    how = f"read in {(time.monotonic() - started) * 1000:.0f} ms"
    if facts.daemon_slurm_view is not None:
        how = f"read by the daemon {format_age(view.as_of, facts.now)}"
    what = f"{len(view.nodes)} nodes and {len(view.jobs)} jobs {how}"
    yield CheckView("slurmctld", "ok", what, "")


def _read_slurmctld_version(config: Config) -> Version | None:
    """The release of the slurmctld that is installed beside the commands, or in the PATH."""
    from hpctl.slurm.parse import parse_slurm_version

    beside = config.slurm.bin or Path(shutil.which("scontrol") or "/usr/bin/scontrol").parent
    places = (beside, beside.parent / "sbin", os.environ.get("PATH", os.defpath))
    program = shutil.which("slurmctld", path=os.pathsep.join(map(str, places)))
    if program is None:
        return None
    ran = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=10, check=False)
    return parse_slurm_version(ran.stdout)


def check_slurm_versions(
    commands: Version, slurmctld: Version, *, answers: bool
) -> Iterator[CheckView]:
    """Commands and slurmctld of one release; a newer slurmctld knows two or three older ones."""
    if commands[:2] == slurmctld[:2]:
        return
    what = (
        f"the commands are of Slurm {_format_version(commands)},"
        f" slurmctld of {_format_version(slurmctld)}"
    )
    hint = "name the folder with slurmctld's own release in slurm.bin, or upgrade the older one"
    yield CheckView("slurm release", "warn" if answers else "fail", what, hint)


def _format_version(version: Version) -> str:
    return f"{version[0]}.{version[1]:02}.{version[2]}"


def check_slurm_conf_settings(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """slurm.conf against what recovery needs, and the known hazards of the release that runs."""
    config = facts.config
    from hpctl.engine.adapters import make_slurm_command_client
    from hpctl.slurm import parse
    from hpctl.slurm.hazards import find_slurm_hazards

    scheduler = make_slurm_command_client(config)
    commands, shown = scheduler.version(), scheduler.show_config()
    version = parse.parse_slurm_version(shown.get("SLURM_VERSION", "")) or commands
    yield from check_slurm_versions(commands, version, answers=True)
    found = find_slurm_hazards(
        version, shown, _read_slurm_topology_files(Path(shown.get("SLURM_CONF", "")))
    )
    if not any(h.severity in ("fail", "warn") for h in found):
        yield CheckView(
            "slurm.conf", "ok", f"Slurm {_format_version(version)}: nothing that harms recovery", ""
        )
    for h in found:
        yield CheckView(h.rule, h.severity, h.what, h.hint, h.source)
    yield _check_slurm_update_permissions(shown.get("SlurmUser", ""))
    yield _check_slurmctld_log_access(config, shown)


def _read_slurm_topology_files(conf: Path) -> dict[str, str] | None:
    """The topology files beside slurm.conf; None where it is not on this machine."""
    from hpctl.slurm.hazards import TOPOLOGY

    if not conf.is_file():
        return None
    beside = (conf.with_name(name) for name in TOPOLOGY)
    return {path.name: path.read_text(errors="replace") for path in beside if path.is_file()}


def _check_slurm_update_permissions(slurm_user: str) -> CheckView:
    """Only root, SlurmUser and accounting operators may update nodes and other users' jobs."""
    uid = os.getuid()
    owner = slurm_user.partition("(")[0]
    try:
        me = pwd.getpwuid(uid).pw_name
    except KeyError:
        me = str(uid)
    if uid == 0 or me == owner:
        return CheckView("slurm rights", "ok", f"{me} may drain nodes and requeue jobs", "")
    hint = f"run the daemon as root or {owner or 'SlurmUser'}, or make {me} a Slurm operator"
    return CheckView("slurm rights", "unknown", f"whether {me} may drain nodes is not known", hint)


def _check_slurmctld_log_access(config: Config, shown: Mapping[str, str]) -> CheckView:
    """Where slurmctld's log is followed, Slurm is asked next to nothing at rest."""
    from hpctl.slurm.controller_log import choose_slurmctld_log_file

    path, trouble = choose_slurmctld_log_file(shown, socket.gethostname())
    if path is not None and not os.access(path, os.R_OK):
        trouble = f"{path} cannot be read by this user"
    if not trouble:
        what = f"{path} is followed: at rest Slurm is read every {config.loop.rest_s:g} s"
        return CheckView("slurmctld log", "ok", what, "")
    what = f"it cannot be followed: {trouble}; Slurm is read every 10 s"
    hint = "run the daemon beside slurmctld, with SlurmctldLogFile set and SlurmctldDebug=info"
    return CheckView("slurmctld log", "warn", what, hint)


def check_munge(socket_path: Path | None) -> Iterator[CheckView]:
    """A credential survives the round trip through munged."""

    payload = secrets.token_bytes(16)
    try:
        credential = decode_munge_credential(
            encode_munge_credential(payload, socket_path), socket_path
        )
    except ServiceUnavailable as error:
        yield CheckView("munge", "fail", str(error), error.hint)
        return
    except HpctlError as error:
        yield CheckView("munge", "fail", f"it rejects its own credential: {error}", error.hint)
        return
    good = credential.payload == payload and credential.uid == os.geteuid()
    verdict = "ok" if good else "fail"
    what = f"a credential of uid {credential.uid} from {credential.address}"
    hint = "" if good else "restart munged: it returned a different payload"
    yield CheckView("munge", verdict, what, hint)


def check_daemon(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """A daemon holds the lease, its intake listens, and nothing stops it from acting."""
    config, now = facts.config, facts.now
    from hpctl.engine.adapters import open_journal_reader
    from hpctl.engine.world_offline import read_leader_lease, replay_journal_events

    with contextlib.closing(open_journal_reader(config)) as store:
        info = read_leader_lease(store, now, wait=config.database_url is not None)
        state = replay_journal_events(store.events())
    yield CheckView("journal", "ok", f"{state.events} events, all valid", "")
    hint = "systemctl start hpctl-daemon (or: hpctl daemon run); see its log for the cause"
    if info is None:
        yield CheckView("daemon", "fail", "none has ever run on this state directory", hint)
    elif now > info.until:
        silent = format_duration((now - info.heartbeat).total_seconds())
        what = f"pid {info.pid} on {info.host} has been silent for {silent}"
        yield CheckView("daemon", "fail", what, hint)
    else:
        what = f"pid {info.pid} on {info.host}, mode {info.mode}, hpctl {info.version}"
        if info.trouble:
            yield CheckView("daemon", "warn", f"{what}: {info.trouble}", "hpctl status")
        else:
            yield CheckView("daemon", "ok", what, "")
        if info.host == socket.gethostname():
            yield _check_daemon_listen_port(config.intake.listen)
    for target, hold in sorted(state.holds.items()):
        if hold.gate == GATE:
            level = "fail" if hold.rule == ESCALATED else "warn"
            yield CheckView("quarantine", level, f"{target}: {hold.why}", f"hpctl explain {target}")
    for pause in find_active_pauses(state.pauses, now):
        yield CheckView("pause", "warn", pause.text, pause.lift_command)
    if config.kill_switch.exists():
        what = f"the kill switch {config.kill_switch} is there: nothing is done"
        yield CheckView("kill switch", "warn", what, f"rm {config.kill_switch}")


def _check_daemon_listen_port(listen: str) -> CheckView:
    host, _, port = listen.rpartition(":")
    target = "127.0.0.1" if host in ("", "0.0.0.0") else host  # noqa: S104
    try:
        socket.create_connection((target, int(port)), timeout=2).close()
    except OSError as error:
        hint = "look into the daemon's log; is another program on that port?"
        return CheckView("intake", "fail", f"no process listens on {listen}: {error}", hint)
    return CheckView("intake", "ok", f"agents can report on {listen}", "")


NETWORK_FILESYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "9p", "afs", "gfs2"}
)
"""File systems where SQLite's WAL is not safe: it needs shared memory between its users."""


def check_state_directory(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """The state directory is there, writable, on a local file system, and has room."""
    config = facts.config
    path = config.state_dir
    if not path.is_dir():
        yield CheckView("state directory", "fail", f"{path} is not there", f"mkdir -p {path}")
        return
    kind = find_filesystem_mount_for_path(path, Path("/proc/self/mountinfo").read_text()).kind
    if config.database_url is None and (kind in NETWORK_FILESYSTEMS or kind.startswith("fuse.")):
        hint = "put state_dir on a local disk, or use database_url with a database server"
        yield CheckView("state directory", "fail", f"{path} is on {kind}", hint)
    elif not os.access(path, os.W_OK):
        hint = "run as root: requests are written there"
        yield CheckView("state directory", "warn", f"{path} is not writable for this user", hint)
    elif full := describe_full_state_filesystem(path):
        yield CheckView("state directory", "fail", full, "make room: the journal must be written")
    elif config.database_url is None and (shared := find_world_writable_directories(path)):
        what = f"{path} is on the file system of {', '.join(shared)}, which any user can fill"
        hint = (
            "put state_dir on a separate file system; until then a full disk leaves the journal"
            " its reserve alone (docs/troubleshooting.md)"
        )
        yield CheckView("state directory", "warn", what, hint)
    else:
        yield CheckView("state directory", "ok", f"{path}, writable, on {kind}", "")


def check_cloud_provider_access(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """The cloud answers with these credentials, and only one of the two replaces nodes."""
    config = facts.config
    if config.cluster.provider == "none":
        hint = "set cluster.provider to have hpctl reboot and replace"
        verdict = "warn" if config.mode is OperatingMode.OWN else "ok"
        yield CheckView("cloud", verdict, "none: drain and requeue only", hint)
        return
    view = facts.cloud
    what = f"cluster {config.cluster.name}: {len(view.instances)} instances"
    yield CheckView("cloud", "ok", what, "")
    yield check_node_recovery_setting(view, config.mode)
    if view.unpatched:
        yield make_software_update_warning(view, config)
    if config.autoscale.enabled:
        yield from check_autoscaled_groups(view, config)


def check_instance_to_node_mapping(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """Each instance stands for one Slurm node, whatever their names are."""
    slurm = facts.slurm
    view, join = match_instances_to_nodes_once(facts.cloud, slurm)
    lost = [
        i.id
        for i in view.instances.values()
        if i.node not in slurm.nodes and i.status is InstanceStatus.RUNNING and not i.protected
    ]
    if lost:
        why = join.unjoined.get(lost[0], "no NodeAddr or name fits")
        what = f"{len(lost)} instances have no Slurm node, {lost[0]} for one: {why}"
        hint = "compare `scontrol show node` (NodeAddr) with `hpctl cluster instances --details`"
        yield CheckView("instance names", "warn", what, hint)


def make_software_update_warning(view: CloudProviderView, config: Config) -> CheckView:
    """Orders that the service added after this cluster was made, and that it does not take yet."""
    harm = "nodes cannot be replaced or deleted"
    if "BatchReplaceClusterNodes" not in view.unpatched:
        harm = "nodes cannot be deleted"
    what = (
        f"older than {', '.join(view.unpatched)}, and its software was never updated since: {harm}"
    )
    hint = f"when no jobs run: `hpctl cluster software-update {config.cluster.name}`"
    return CheckView("software update", "warn", what, hint)


def _explain_node_recovery_setting(recovery: str) -> str:
    """How an operator sets NodeRecovery. A cluster without a file gets one from what it is."""
    return (
        f"write node_recovery: {recovery} into cluster.yaml and `hpctl cluster update` it"
        " (no file yet: `hpctl cluster import CLUSTER -o cluster.yaml`)"
    )


def check_node_recovery_setting(view: CloudProviderView, mode: OperatingMode) -> CheckView:
    """Exactly one of hpctl and HyperPod replaces: both is a fight, none is a dead node."""
    automatic = f"NodeRecovery is {'Automatic' if view.automatic else 'None'}, mode {mode}"
    if view.automatic and mode is OperatingMode.OWN:
        hint = f"{_explain_node_recovery_setting('None')}, or run in mode assist"
        return CheckView("node recovery", "fail", f"{automatic}: both would replace", hint)
    if not view.automatic and mode is not OperatingMode.OWN:
        hint = f"run in mode own, or {_explain_node_recovery_setting('Automatic')}"
        return CheckView("node recovery", "warn", f"{automatic}: nothing replaces a node", hint)
    return CheckView("node recovery", "ok", automatic, "")


def _check_daemon_user(facts: DoctorCheckInputs) -> Iterator[CheckView]:
    """The unit runs the daemon as SlurmUser, who reads what the daemon must."""
    config = facts.config
    user, name = find_systemd_unit_user(), "daemon's user"
    if user is None:
        return
    owner = find_slurm_user(config)
    if user != owner:
        what = f"the unit runs the daemon as {user}, and SlurmUser is {owner}"
        verdict = "warn" if user == "root" else "fail"  # who may not drain
        yield CheckView(name, verdict, what, "as root: hpctl install head")
        return
    conf = [config.slurm.conf] if config.slurm.conf else list_slurm_conf_paths()
    state = (path for path in config.state_dir.glob("*") if path.is_file())
    try:
        wrong = list_files_needing_permission_changes(config, owner) + list_unreadable_paths(
            owner, [*conf, config.kill_switch.parent]
        )
        lost = list_unreadable_paths(owner, state)
    except PermissionError:
        what = f"only root can tell what {owner} may read"
        yield CheckView(name, "unknown", what, "sudo hpctl doctor")
        return
    what, hint = f"{owner}, SlurmUser, reads what the daemon must", ""
    if lost:
        hint = f"chown root: {config.state_dir}; systemctl restart hpctl-daemon (it gets it all)"
    elif wrong:
        hint = FIX
    if hint:
        named = ", ".join(map(str, lost or wrong))
        what = f"{owner} must read, and no other user where it is a secret: {named}"
    yield CheckView(name, "fail" if hint else "ok", what, hint)


def check_autoscaled_groups(view: CloudProviderView, config: Config) -> Iterator[CheckView]:
    """The groups that are autoscaled are there, and the service can add to them."""
    protected = {i.group for i in view.instances.values() if i.protected}
    wrong = False
    for name, limits in config.autoscale.groups.items():
        group = view.groups.get(name)
        if group is None:
            there = ", ".join(sorted(view.groups.keys() - protected)) or "none"
            what = f"the cluster has no group {name}; it has {there}"
            yield CheckView("autoscale", "fail", what, "name one of them in autoscale.groups")
        elif name in protected:
            what = f"group {name} has controllers or login nodes"
            yield CheckView("autoscale", "fail", what, "take it out of autoscale.groups")
        elif not limits.min_count <= group.target <= limits.max_count:
            what = f"group {name} has {group.target} instances, not {limits.min_count} to"
            what = f"{what} {limits.max_count}: nothing brings it there but jobs and idle nodes"
            yield CheckView("autoscale", "warn", what, f"hpctl cluster scale {name} COUNT")
        else:
            continue
        wrong = True
    if not view.continuous:
        what = "NodeProvisioningMode is not Continuous: groups grow by UpdateCluster"
        hint = "that needs iam:PassRole too: `hpctl cluster iam check ROLE-ARN --as head-node`"
        yield CheckView("autoscale", "warn", what, hint)
    elif not wrong:
        what = f"{len(config.autoscale.groups)} group(s) within their bounds"
        yield CheckView("autoscale", "ok", what, "")


TIME_ERROR = 5


_TIMEX = "@i4xlllli"


def check_system_clock() -> Iterator[CheckView]:
    """Read from the kernel (adjtimex(2)) whether a program keeps the clock right."""
    buffer = ctypes.create_string_buffer(512)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    if state < 0:
        what = f"the kernel does not say: {os.strerror(ctypes.get_errno())}"
        yield CheckView("clock", "unknown", what, "chronyc tracking")
        return
    max_error_us = struct.unpack_from(_TIMEX, buffer)[3]
    if state == TIME_ERROR:
        hint = "run chrony or systemd-timesyncd: credentials of skewed hosts are refused"
        yield CheckView("clock", "warn", "no time service synchronizes this host's clock", hint)
    else:
        what = f"synchronized, at most {max_error_us / 1000:.0f} ms off"
        yield CheckView("clock", "ok", what, "")


CHECKS: tuple[tuple[str, Check], ...] = (
    ("munge", lambda facts: check_munge(facts.config.intake.munge_socket)),
    ("slurm commands", check_slurm_commands),
    ("slurmctld", check_slurmctld),
    ("slurm.conf", check_slurm_conf_settings),
    ("state directory", check_state_directory),
    ("daemon's user", _check_daemon_user),
    ("daemon", check_daemon),
    ("cloud", check_cloud_provider_access),
    ("instance names", check_instance_to_node_mapping),
)
