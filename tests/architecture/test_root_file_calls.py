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
        "hpctl/daemon/locks.py": ("_find_locking_daemon",),
        "hpctl/detection/budget.py": ("read_process_resident_mb",),
        "hpctl/detection/check.py": ("CheckedMachine.text",),
        "hpctl/detection/checks/gpu_processes.py": ("_read_process_name", "_is_slurm_step_running"),
        "hpctl/detection/checks/host_allowance.py": ("_list_sysfs_entries",),
        "hpctl/detection/checks/host_devices.py": ("collect_pci_device_sample",),
        "hpctl/detection/checks/host_edac.py": ("read_edac_counts",),
        "hpctl/detection/checks/host_nvme.py": (
            "read_nvme_controllers",
            "_is_nvme_temperature_alarm_on",
            "_read_sysfs_value",
        ),
        "hpctl/detection/checks/host_nvme_smart.py": ("read_nvme_smart_health",),
        "hpctl/detection/checks/host_units.py": ("has_nvswitch",),
        "hpctl/detection/checks/job_activity.py": (
            "sample_job_processes",
            "_is_shell_executable",
            "_read_file_start",
            "_count_node_traffic_bytes",
        ),
        "hpctl/detection/checks/neuron_reading.py": (
            "map_neuron_devices_to_folders",
            "NeuronErrorReader._read_device_error_counters",
            "list_subfolders",
        ),
        "hpctl/detection/checks/rdma_errors.py": ("_read_rdma_counter_folders",),
        "hpctl/detection/kmsg.py": ("KmsgDevice.__init__",),
        "hpctl/detection/machine.py": ("list_gpu_pci_addresses", "_is_gpu_pci_device"),
        "hpctl/detection/nvml/pauses.py": ("is_process_frozen", "_is_cgroup_frozen"),
        "hpctl/detection/procs.py": (
            "ProcessScanner.tasks",
            "list_threads",
            "read_proc_stat_fields",
        ),
        "hpctl/detection/rdma.py": (
            "list_rdma_devices",
            "count_amazon_pci_functions",
            "_read_sysfs_word",
            "list_rdma_ports",
            "_read_sysfs_file",
        ),
        "hpctl/detection/rdma_counters.py": (
            *(
                "_CounterFileGroup._read_counter_values",
                "CounterFileReader.read",
                "CounterFileReader._open_counter_file",
            ),
        ),
        "hpctl/detection/settings.py": ("read_local_ec2_instance_id", "read_local_boot_id"),
        "hpctl/detection/slurm_jobs.py": (
            *("is_slurmstepd_process", "_is_process_owned_by_root", "_is_installed_slurmstepd"),
            *(
                "ProcessJobFinder.holder",
                "ProcessJobFinder._find_ancestor_job",
                "ProcessJobFinder._read_process_stat",
            ),
        ),
        "hpctl/jobs/hangs/stacks.py": (
            "_read_thread_state",
            "_read_kernel_wait_channel",
            "_list_stopped_child_processes",
        ),
        "hpctl/jobs/job_processes.py": (
            "read_job_process",
            "list_process_ids",
            "has_signal_handler",
        ),
        "hpctl/nodes/acceptance/card.py": ("read_node_gpu_card", "_read_product_name"),
        "hpctl/nodes/acceptance/run.py": ("run_acceptance_test", "_kill_test_and_exit"),
        "hpctl/toolkit/socket_owner.py": ("_read_proc_net_tcp_rows",),
        "hpctl/nodes/gpu_reset.py": (
            "GpuReset._check_reset_allowed",
            "GpuReset._find_gpu_processes",
        ),
        "hpctl/nodes/evidence/collect.py": (
            *(
                "EvidenceCollector.list_hardware_network_interfaces",
                "EvidenceCollector.read_counter_files",
            ),
        ),
    },
    "the shared directory of evidence, which root alone names and owns; no link is followed": {
        "hpctl/nodes/evidence/archive.py": (
            *(
                "EvidenceArchiveWriter.__init__",
                "EvidenceArchiveWriter.close",
                "EvidenceArchiveWriter.drop",
            ),
            "open_private_directory",
        ),
        "hpctl/nodes/evidence/store.py": ("list_archives", "delete_archives", "open_regular_file"),
    },
    "the daemon's state directory, which its user alone may write": {
        "hpctl/daemon/locks.py": ("lock_state_dir",),
        "hpctl/engine/adapters.py": ("_find_sqlite_journal_file", "_fetch_journal_copy"),
        "hpctl/engine/journal/creation.py": ("check_journal_exists", "create_journal"),
        "hpctl/engine/journal/database.py": ("_test_migration_on_copy",),
        "hpctl/engine/journal/reserve.py": (
            *("JournalDiskReserve._create_ballast_file", "JournalDiskReserve._delete_ballast_file"),
            *("_count_free_bytes", "_get_file_size"),
        ),
        "hpctl/engine/journal/restore.py": ("find_journal_restore_target", "chown_journal_files"),
        "hpctl/engine/journal/sqlite_source.py": (
            "publish_world_readable_sqlite_copy",
            "make_sqlite_file_durable",
        ),
        "hpctl/engine/journal/store.py": (
            "JournalStore._refuse_empty_journal_file",
            "JournalStore._read_journal_file_identity",
        ),
        "hpctl/engine/request_client.py": (
            "send_operator_requests",
            "wait_for_request_answers",
            "_queue_request_in_journal",
        ),
        "hpctl/engine/state_disk.py": (
            "describe_full_state_filesystem",
            "find_world_writable_directories",
        ),
        "hpctl/engine/wake.py": ("DaemonLoopWaker.__init__", "wake_daemon"),
        "hpctl/engine/world_server.py": (
            "WorldServer.stop",
            "WorldServer._open_socket",
            "WorldServer._copy_journal_permissions_to_socket",
        ),
        "hpctl/engine/world_wire.py": ("shorten_socket_path",),
        "hpctl/jobs/hangs/daemon.py": ("StackCollector._store_stack_dump",),
        "hpctl/jobs/report_intake.py": ("JobReportHandler._has_disk_space",),
        "hpctl/service/alert_gauges.py": ("read_free_disk_ratio",),
        "hpctl/service/alerts.py": ("AlertStore._save_alerts", "load_alerts"),
        "hpctl/service/page/follow.py": ("StatusPagePoller.__init__",),
    },
    "the agent's spool and socket, in directories that are root's": {
        "hpctl/detection/machine.py": ("record_agent_version_change",),
        "hpctl/detection/node_name.py": (
            "_find_node_name_by_address",
            "_read_cached_node_name_file",
        ),
        "hpctl/detection/outside/local_server.py": (
            *("AgentSocketServer.stop", "_open_listening_socket", "_remove_stale_socket_file"),
        ),
        "hpctl/detection/outside/reported.py": (
            "ReportedFindingTable._load_stored_reports",
            "ReportedFindingTable._save_stored_reports",
        ),
        "hpctl/detection/spool.py": ("FindingsSpool.save", "FindingsSpool._read"),
        "hpctl/nodes/evidence/gather.py": ("gather_evidence", "prepare_spool_folder"),
        "hpctl/nodes/acceptance/result.py": (
            "AcceptanceResultInbox.prepare",
            "AcceptanceResultInbox.look",
            "AcceptanceResultInbox._delete_file",
        ),
        "hpctl/nodes/acceptance/run.py": ("write_acceptance_result_file",),
    },
    "named by root: a file of the configuration, Slurm's or the system's": {
        "hpctl/jobs/crash.py": ("load_crash_patterns",),  # of the package itself
        "hpctl/daemon/locks.py": (
            "SlurmClusterLock.trouble",
            "SlurmClusterLock._is_slurm_conf_locked",
        ),
        "hpctl/detection/checks/host_clock.py": ("read_system_clock_offset",),
        "hpctl/detection/checks/host_disk.py": ("_measure_local_disk_usage",),
        "hpctl/detection/checks/host_readonly.py": ("probe_local_mount_writability",),
        "hpctl/detection/checks/host_units.py": ("read_systemd_units",),
        "hpctl/detection/config.py": ("load_agent_config",),
        "hpctl/detection/kmsg.py": (
            "KmsgFileFollower.__init__",
            "KmsgFileFollower._reopen_file_if_replaced",
            "open_kernel_log",
        ),
        "hpctl/detection/node_name.py": ("_find_node_name_by_scontrol",),
        "hpctl/detection/outside/hma_log.py": ("HealthAgentJournal._start_journalctl",),
        "hpctl/detection/outside/sources.py": ("PluginRunner.run",),
        "hpctl/engine/adapters.py": ("read_slurm_cluster_name",),
        "hpctl/engine/kill_switch.py": ("read_kill_switch_reason",),
        "hpctl/jobs/hangs/stacks.py": ("_read_process_stack",),
        "hpctl/jobs/other_actors.py": ("check_conflicting_restart_tools",),
        "hpctl/nodes/acceptance/run.py": ("AcceptanceRequirements.missing", "_print_tests"),
        "hpctl/nodes/evidence/collect.py": ("EvidenceCollector.find_program", "read_file_tail"),
        "hpctl/sagemaker/provider.py": ("InstanceAddressFile.addresses",),
        "hpctl/service/alerts.py": ("read_secret_file",),
        "hpctl/service/notify/sinks.py": ("read_notification_sink_url",),
        "hpctl/service/page/serve.py": ("_open_listening_socket",),
        "hpctl/slurm/controller_log.py": ("SlurmctldLogFollower.open", "SlurmctldLogFollower.read"),
        "hpctl/slurm/run.py": ("SlurmCommandRunner.run",),
        "hpctl/toolkit/yaml_files.py": ("read_size_limited_text",),
        "hpctl/wire/heads.py": ("read_slurm_user",),
    },
    "owner and mode are looked at before anything of it is used": {
        "hpctl/detection/driver_files.py": ("read_nvml_library_version", "_is_trusted_driver_file"),
        "hpctl/detection/outside/hma_log.py": (
            *("HealthAgentLogFile._read_log_file_chunk", "HealthAgentLogFile._open_log_file"),
        ),
        "hpctl/detection/outside/plugins.py": (
            "_list_plugin_files",
            "_explain_untrusted_plugin_file",
        ),
        "hpctl/detection/outside/trust.py": ("explain_untrusted_directory",),
        "hpctl/nodes/acceptance/result.py": ("read_file_of_trusted_user",),
        "hpctl/nodes/acceptance/run.py": ("load_acceptance_tests",),
    },
    "a temporary file without a name": {
        "hpctl/detection/outside/sources.py": ("JobStackCollector._read",),
        "hpctl/nodes/evidence/agent.py": ("_run_gather_process",),
        "hpctl/nodes/evidence/archive.py": ("EvidenceArchiveWriter.add",),
    },
    "a person's command, which reads with that person's rights": {
        "hpctl/detection/triage.py": ("_open_log",),
        "hpctl/engine/journal/backup.py": ("back_up_journal_to_file",),
        "hpctl/jobs/spank.py": ("_write_rewritten_arguments_file",),
    },
    "a temporary directory that root alone may enter": {
        "hpctl/nodes/evidence/collect.py": (
            "EvidenceCollector.read_bug_report",
            "_read_bounded_gzip_file",
        ),
        "hpctl/nodes/evidence/gather.py": ("_write_evidence_archive",),
    },
    "opens no file": {
        "hpctl/daemon/reload.py": ("ConfigReload.run",),
        "hpctl/detection/nvml/child.py": (
            "GpuReader.read",
            "NvmlEventThread._register_nvml_events",
        ),
        "hpctl/engine/observe.py": ("ClusterObserver._open_controller_log",),
        "hpctl/nodes/evidence/store.py": ("read_archive_texts",),
        "hpctl/toolkit/lazy_commands.py": ("_FastHelpFormatter.write_text",),
        "hpctl/wire/authentication.py": ("Authenticator.open_session",),
    },
    "the walk that all others use": {
        "hpctl/toolkit/user_files.py": (
            *("open_user_file", "_open_path_descriptor"),
            *("open_own_file", "is_own_file", "read_own_file_tail"),
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
