"""Code that runs as root or as the daemon's user opens what a user named by user_files only."""

from pathlib import Path

import pytest

from tests.architecture.file_calls import find_loaded, list_file_calls, list_modules

USERS_OWN = {
    "hpctl.checkpoints": "runs as the job's owner; `explain` opens nothing of a user's as root",
    "hpctl.jobs.run": "runs in the job, as its owner",
    "hpctl.jobs.elastic": "runs in the job, as its owner",
    "hpctl.jobs.logs": "runs in the job, as its owner",
    "hpctl.jobs.sbatch": "runs as who submits; opens nothing of a user's as root",
}
"""Rooms that the roots import values from, and whose code that opens files runs as the user."""

ROOTS = (
    *("hpctl.jobs.hangs.stacks", "hpctl.nodes.acceptance.run", "hpctl.nodes.gpu_reset"),
    *("hpctl.nodes.evidence.agent", "hpctl.nodes.evidence.gather"),
    *("hpctl.engine.journal.backup", "hpctl.engine.journal.restore", "hpctl.jobs.spank"),
)
"""Programs that root starts, beside the daemon and the agent."""

PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "the kernel's: below /proc, /sys or /dev": {
        "hpctl/daemon/locks.py": ("_daemon_that_locks",),
        "hpctl/detection/budget.py": ("resident_mb",),
        "hpctl/detection/check.py": ("CheckedMachine.text",),
        "hpctl/detection/checks/gpu_processes.py": ("_read_name", "_step_runs"),
        "hpctl/detection/checks/host_allowance.py": ("_list_interfaces",),
        "hpctl/detection/checks/host_devices.py": ("gather_devices",),
        "hpctl/detection/checks/host_edac.py": ("gather_edac",),
        "hpctl/detection/checks/host_nvme.py": ("gather_nvme", "_has_alarm", "_read_word"),
        "hpctl/detection/checks/host_nvme_smart.py": ("gather_smart",),
        "hpctl/detection/checks/host_units.py": ("has_nvswitch",),
        "hpctl/detection/checks/job_activity.py": (
            "gather",
            "_is_shell",
            "_read_bytes",
            "_read_traffic",
        ),
        "hpctl/detection/checks/neuron_reading.py": (
            "list_devices",
            "ErrorCounters._read_device",
            "list_folders",
        ),
        "hpctl/detection/checks/rdma_errors.py": ("_read_folders",),
        "hpctl/detection/kmsg.py": ("KernelDevice.__init__",),
        "hpctl/detection/machine.py": ("pci_gpus", "_is_gpu"),
        "hpctl/detection/nvml/pauses.py": ("is_frozen", "_reads_as_frozen"),
        "hpctl/detection/procs.py": ("Scan.tasks", "list_threads", "stat_fields"),
        "hpctl/detection/rdma.py": (
            "list_devices",
            "pci_functions",
            "_read_word",
            "list_ports",
            "_read_file",
        ),
        "hpctl/detection/rdma_counters.py": (
            *("_CounterGroup._read_values", "CounterFiles.read", "CounterFiles._keep_file"),
        ),
        "hpctl/detection/settings.py": ("this_instance", "this_boot"),
        "hpctl/detection/slurm_jobs.py": (
            *("is_slurmstepd", "_belongs_to_root", "_is_installed"),
            *("ProcessJobs.holder", "ProcessJobs._by_ancestor", "ProcessJobs._read_stat"),
        ),
        "hpctl/jobs/hangs/stacks.py": ("_read_state", "_read_wchan", "_dead_children"),
        "hpctl/jobs/job_processes.py": ("read_process", "list_pids", "has_handler"),
        "hpctl/nodes/acceptance/card.py": ("read_card", "_read_product_name"),
        "hpctl/nodes/acceptance/run.py": ("run_test", "_kill_test_and_exit"),
        "hpctl/toolkit/socket_owner.py": ("_read_sockets",),
        "hpctl/nodes/gpu_reset.py": ("Reset._refuse_reset", "Reset._find_holders"),
        "hpctl/nodes/evidence/collect.py": (
            *("Collector.list_interfaces", "Collector.read_counters"),
        ),
    },
    "the shared directory of evidence, which root alone names and owns; no link is followed": {
        "hpctl/nodes/evidence/archive.py": (
            *("EvidenceArchive.__init__", "EvidenceArchive.close", "EvidenceArchive.drop"),
            "open_directory",
        ),
        "hpctl/nodes/evidence/store.py": ("list_files", "delete_files", "open_regular"),
    },
    "the daemon's state directory, which its user alone may write": {
        "hpctl/daemon/locks.py": ("lock_state_dir",),
        "hpctl/engine/adapters.py": ("_find_journal_file", "_fetch_copy"),
        "hpctl/engine/journal/creation.py": ("check_journal_exists", "create_journal"),
        "hpctl/engine/journal/database.py": ("_try_migration",),
        "hpctl/engine/journal/reserve.py": (
            *("JournalReserve._make_ballast", "JournalReserve._delete_ballast"),
            *("_count_free_bytes", "_read_size"),
        ),
        "hpctl/engine/journal/restore.py": ("find_target", "hand_over_journal"),
        "hpctl/engine/journal/sqlite_source.py": ("publish_copy", "seal_file"),
        "hpctl/engine/journal/store.py": ("Store._refuse_empty", "Store._stat"),
        "hpctl/engine/request_client.py": ("ask_daemon", "await_answers", "_queue_request"),
        "hpctl/engine/state_disk.py": ("describe_full_disk", "find_open_directories"),
        "hpctl/engine/wake.py": ("Waker.__init__", "wake_daemon"),
        "hpctl/engine/world_server.py": (
            *("WorldServer.stop", "WorldServer._open_socket", "WorldServer._keep_access"),
        ),
        "hpctl/engine/world_wire.py": ("shorten_address",),
        "hpctl/jobs/hangs/daemon.py": ("StackCollector._keep",),
        "hpctl/jobs/report_intake.py": ("JobReportHandler._has_room",),
        "hpctl/service/alert_gauges.py": ("read_free_ratio",),
        "hpctl/service/alerts.py": ("AlertStore._save_alerts", "load_alerts"),
        "hpctl/service/page/follow.py": ("PageFollower.__init__",),
    },
    "the agent's spool and socket, in directories that are root's": {
        "hpctl/detection/machine.py": ("note_upgrade",),
        "hpctl/detection/node_name.py": ("_find_name", "_read_file"),
        "hpctl/detection/outside/local_server.py": (
            *("LocalServer.stop", "_open_listener", "_clear_away"),
        ),
        "hpctl/detection/outside/reported.py": ("Reported._load_state", "Reported._save_state"),
        "hpctl/detection/spool.py": ("Spool.save", "Spool._read"),
        "hpctl/nodes/evidence/gather.py": ("gather", "prepare_folder"),
        "hpctl/nodes/acceptance/result.py": ("Inbox.prepare", "Inbox.look", "Inbox._delete_file"),
        "hpctl/nodes/acceptance/run.py": ("write_results",),
    },
    "named by root: a file of the configuration, Slurm's or the system's": {
        "hpctl/jobs/crash.py": ("crash_patterns",),  # of the package itself
        "hpctl/daemon/locks.py": ("ClusterLock.trouble", "ClusterLock._is_held"),
        "hpctl/detection/checks/host_clock.py": ("gather_clock",),
        "hpctl/detection/checks/host_disk.py": ("_list_disks",),
        "hpctl/detection/checks/host_readonly.py": ("gather_readonly",),
        "hpctl/detection/checks/host_units.py": ("gather_units",),
        "hpctl/detection/config.py": ("load_agent_config",),
        "hpctl/detection/kmsg.py": (
            *("KmsgFileFollower.__init__", "KmsgFileFollower._follow_file", "open_log"),
        ),
        "hpctl/detection/node_name.py": ("_ask_scontrol",),
        "hpctl/detection/outside/hma_log.py": ("HealthAgentJournal._start_journalctl",),
        "hpctl/detection/outside/sources.py": ("PluginRunner.run",),
        "hpctl/engine/adapters.py": ("read_cluster_name",),
        "hpctl/engine/kill_switch.py": ("stop_reason",),
        "hpctl/jobs/hangs/stacks.py": ("_look_at",),
        "hpctl/jobs/other_actors.py": ("check_other_actors",),
        "hpctl/nodes/acceptance/run.py": ("Needs.missing", "_print_tests"),
        "hpctl/nodes/evidence/collect.py": ("Collector.find_program", "read_tail"),
        "hpctl/sagemaker/provider.py": ("ResourceConfig.addresses",),
        "hpctl/service/alerts.py": ("read_token",),
        "hpctl/service/notify/sinks.py": ("read_url",),
        "hpctl/service/page/serve.py": ("_open_listener",),
        "hpctl/slurm/controller_log.py": ("ControllerLog.open", "ControllerLog.read"),
        "hpctl/slurm/run.py": ("SlurmRunner.run",),
        "hpctl/toolkit/yaml_files.py": ("read_limited_text",),
        "hpctl/wire/heads.py": ("slurm_user",),
    },
    "owner and mode are looked at before anything of it is used": {
        "hpctl/detection/driver_files.py": ("library_version", "_is_trusted"),
        "hpctl/detection/outside/hma_log.py": (
            *("HealthAgentFile._read_chunk", "HealthAgentFile._open_log"),
        ),
        "hpctl/detection/outside/plugins.py": ("_list_files", "_explain_distrust"),
        "hpctl/detection/outside/trust.py": ("why_not_directory",),
        "hpctl/nodes/acceptance/result.py": ("read_bounded",),
        "hpctl/nodes/acceptance/run.py": ("known_tests",),
    },
    "a temporary file without a name": {
        "hpctl/detection/outside/sources.py": ("StackReader._read",),
        "hpctl/nodes/evidence/agent.py": ("_run_gather",),
        "hpctl/nodes/evidence/archive.py": ("EvidenceArchive.add",),
    },
    "a person's command, which reads with that person's rights": {
        "hpctl/detection/triage.py": ("_open_log",),
        "hpctl/engine/journal/backup.py": ("copy_journal",),
        "hpctl/jobs/spank.py": ("_write_answer",),
    },
    "a temporary directory that root alone may enter": {
        "hpctl/nodes/evidence/collect.py": ("Collector.read_bug_report", "_unpack"),
        "hpctl/nodes/evidence/gather.py": ("_gather_into",),
    },
    "opens no file": {
        "hpctl/daemon/reload.py": ("Reload.run",),
        "hpctl/detection/nvml/child.py": ("OneGpu.read", "EventThread._register_events"),
        "hpctl/engine/observe.py": ("Observer._open_log",),
        "hpctl/nodes/evidence/store.py": ("check_members",),
        "hpctl/toolkit/lazy_commands.py": ("_Formatter.write_text",),
        "hpctl/wire/authentication.py": ("Authenticator.open_session",),
    },
    "the walk that all others use": {
        "hpctl/toolkit/user_files.py": (
            *("open_user_file", "_find_file"),
            *("open_own_file", "is_own_file", "read_own_file"),
        )
    },
}
"""The functions that may name files by their paths, and why no user chooses the path."""

REVIEWED = [
    (Path(file), function)
    for files in PLACES.values()
    for file, functions in files.items()
    for function in functions
]


def list_root_files() -> set[Path]:
    rooms = ("hpctl.daemon", "hpctl.detection")
    roots = [name for name in list_modules() if name.startswith(rooms)]
    return find_loaded([*roots, *ROOTS], frozenset(USERS_OWN))


def test_root_names_files_by_path_only_in_reviewed_places() -> None:
    reviewed = set(REVIEWED)
    unknown = [
        f"{file}:{line} {function}: {call}"
        for file in sorted(list_root_files())
        for function, call, line in list_file_calls(file)
        if (file, function) not in reviewed
    ]
    hint = "open it with hpctl.toolkit.user_files, or say in PLACES why no user chooses its path"
    assert unknown == [], hint


def test_no_reviewed_place_outlives_its_calls() -> None:
    loaded = list_root_files()
    calls = {(file, function) for file in loaded for function, _, _ in list_file_calls(file)}
    assert [place for place in REVIEWED if place not in calls] == []


def test_each_place_has_one_reason() -> None:
    assert len(REVIEWED) == len(set(REVIEWED))


def test_what_a_users_process_names_is_opened_by_user_files() -> None:
    """The one place of the agent that takes paths from a user's environment."""
    source = list_file_calls(Path("hpctl/jobs/hangs/stacks.py"))
    assert "_flight" not in {function for function, _, _ in source}


@pytest.mark.parametrize("room", USERS_OWN)
def test_rooms_that_run_as_the_user_are_there(room: str) -> None:
    assert any(name == room or name.startswith(f"{room}.") for name in list_modules())
