"""Kernel lines in the wordings of several kernel generations: check, code, device, treatment."""

from __future__ import annotations

from hpctl.core.model import Urgency

WATCH, AFTER, NOW, NOTHING = "watch", Urgency.AFTER_JOBS, Urgency.NOW, Urgency.NONE

MEMCG = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset={cpuset},mems_allowed=0-1,"
    "oom_memcg={memcg},task_memcg={memcg}{tail},task={task},pid={pid},uid={uid}"
)
V1 = "/slurm/uid_1000/job_4711"
V2 = "/system.slice/slurmstepd.scope/job_4711"


def oom(memcg: str, tail: str = "", task: str = "python", uid: int = 1000) -> str:
    return MEMCG.format(cpuset="job", memcg=memcg, tail=tail, task=task, pid=4321, uid=uid)


CASES = [
    # PCIe, to 6.11 and since 6.12
    ("pcieport 0000:80:01.1: AER: Corrected error received: 0000:81:00.0",
     "kernel.pcie", "corrected", "0000:81:00.0", WATCH),
    ("pcieport 0000:80:01.1: AER: Multiple Corrected error received: 0000:81:00.0",
     "kernel.pcie", "corrected", "0000:81:00.0", WATCH),
    ("pcieport 10000:e0:06.0: AER: Correctable error message received from 10000:e1:00.0",
     "kernel.pcie", "corrected", "10000:e1:00.0", WATCH),
    ("pcieport 0000:80:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:81:00.0",
     "kernel.pcie", "nonfatal", "0000:81:00.0", WATCH),
    ("pcieport 0000:80:01.1: AER: Uncorrected (Fatal) error received: 0000:81:00.0",
     "kernel.pcie", "fatal", "0000:81:00.0", NOW),
    ("pcieport 0000:80:01.1: AER: Multiple Uncorrectable (Fatal) error message received from "
     "0000:81:00.0", "kernel.pcie", "fatal", "0000:81:00.0", NOW),
    ("nvme 0000:81:00.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, "
     "(Receiver ID)", "kernel.pcie", "corrected", "0000:81:00.0", WATCH),
    ("nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, "
     "(Requester ID)", "kernel.pcie", "fatal", "0000:c1:00.0", NOW),
    ("nvidia 0000:c1:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), "
     "type=Transaction Layer, (First)", "kernel.pcie", "nonfatal", "0000:c1:00.0", WATCH),
    ("pcieport 0000:80:01.1: AER: device recovery failed",
     "kernel.pcie", "recovery-failed", "0000:80:01.1", WATCH),
    # NVMe
    ("nvme nvme1: I/O 978 QID 3 timeout, completion polled",
     "kernel.nvme", "timeout", "nvme1", WATCH),
    ("nvme nvme1: I/O 12 QID 4 timeout, aborting", "kernel.nvme", "timeout", "nvme1", WATCH),
    ("nvme nvme1: I/O 12 (Write) QID 4 timeout, aborting",
     "kernel.nvme", "timeout", "nvme1", WATCH),
    ("nvme nvme10: I/O tag 12 (400c) opcode 0x2 (I/O Cmd) QID 4 timeout, aborting "
     "req_op:READ(0) size:4096", "kernel.nvme", "timeout", "nvme10", WATCH),
    ("nvme nvme1: I/O tag 12 (400c) opcode 0x9 (Admin Cmd) QID 0 timeout, reset controller",
     "kernel.nvme", "timeout", "nvme1", WATCH),
    ("nvme nvme4: I/O 0 QID 0 timeout, disable controller", "kernel.nvme", "down", "nvme4", AFTER),
    ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0xffff",
     "kernel.nvme", "down", "nvme1", AFTER),
    ("nvme nvme1: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS read failed (134)",
     "kernel.nvme", "down", "nvme1", AFTER),
    ("nvme nvme1: Device not ready; aborting reset, CSTS=0x1",
     "kernel.nvme", "down", "nvme1", AFTER),
    ("nvme nvme1: Removing after probe failure status: -19", "kernel.nvme", "dead", "nvme1", NOW),
    ("nvme nvme1: Disabling device after reset failure: -19", "kernel.nvme", "dead", "nvme1", NOW),
    ("block nvme1n1: no available path - failing I/O", "kernel.nvme", "dead", "nvme1", NOW),
    # block devices
    ("print_req_error: I/O error, dev sda, sector 1234", "kernel.block", "io-error", "sda", WATCH),
    ("blk_update_request: I/O error, dev nvme1n1, sector 499204104 op 0x0:(READ) flags 0x80700 "
     "phys_seg 1 prio class 0", "kernel.block", "io-error", "nvme1n1", WATCH),
    ("I/O error, dev nvme1n1, sector 499204104 op 0x1:(WRITE) flags 0x0 phys_seg 1 prio class 2",
     "kernel.block", "io-error", "nvme1n1", WATCH),
    ("critical medium error, dev nvme1n1, sector 77 op 0x0:(READ) flags 0x0 phys_seg 1",
     "kernel.block", "medium-error", "nvme1n1", WATCH),
    ("Buffer I/O error on dev nvme1n1p1, logical block 12, lost async page write",
     "kernel.block", "buffer-error", "nvme1n1p1", WATCH),
    ("Buffer I/O error on device dm-0, logical block 31457156",
     "kernel.block", "buffer-error", "dm-0", WATCH),
    ("md/raid1:md0: Disk failure on nvme3n1, disabling device.",
     "kernel.block", "raid-degraded", "md0", WATCH),
    ("md/raid0md127: Disk failure on nvme3n1 detected, failing array.",
     "kernel.block", "raid-lost", "md127", NOW),
    ("md/linearmd1: Disk failure on nvme3n1p1 detected, failing array.",
     "kernel.block", "raid-lost", "md1", NOW),
    ("md/raid10:md2: Disk failure on nvme3n1, disabling device.",
     "kernel.block", "raid-degraded", "md2", WATCH),
    ("attempt to access beyond end of device", "kernel.block", "io-error", "", WATCH),
    # file systems
    ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only",
     "kernel.fs", "readonly", "nvme0n1p1", NOW),
    ("EXT4-fs error (device nvme0n1p1): ext4_journal_check_start:61: Detected aborted journal",
     "kernel.fs", "error", "nvme0n1p1", WATCH),
    ("EXT4-fs error (device dm-2): ext4_lookup:1855: inode #2: comm ls: iget: bogus i_mode (0)",
     "kernel.fs", "error", "dm-2", WATCH),
    ("XFS (nvme1n1): Corruption of in-memory data detected.  Shutting down filesystem",
     "kernel.fs", "readonly", "nvme1n1", NOW),
    ("XFS (dm-28): Corruption of in-memory data (0x8) detected at "
     "xfs_defer_finish_noroll+0x130/0x280 [xfs] (fs/xfs/libxfs/xfs_defer.c:573).  "
     "Shutting down filesystem.", "kernel.fs", "readonly", "dm-28", NOW),
    ("XFS (nvme1n1): Log I/O Error (0x2) detected at xlog_ioend_work+0x60/0xb0 [xfs] "
     "(fs/xfs/xfs_log.c:1377).  Shutting down filesystem.",
     "kernel.fs", "readonly", "nvme1n1", NOW),
    ("XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).",
     "kernel.fs", "readonly", "nvme1n1", NOW),
    ("XFS (sda): Metadata corruption detected at xfs_dir2_sf_verify+0x273, inode 0x83 data fork",
     "kernel.fs", "error", "sda", WATCH),
    ("XFS (dm-0): log I/O error -5", "kernel.fs", "error", "dm-0", WATCH),
    ("BTRFS info (device nvme1n1): forced readonly", "kernel.fs", "readonly", "nvme1n1", NOW),
    ("BTRFS info (device nvme1n2: state EA): forced readonly",
     "kernel.fs", "readonly", "nvme1n2", NOW),
    ("BTRFS info (device sdb1 state EA): forced readonly", "kernel.fs", "readonly", "sdb1", NOW),
    ("BTRFS: error (device dm-0: state A) in btrfs_run_delayed_refs:2207: errno=-5 IO failure",
     "kernel.fs", "error", "dm-0", WATCH),
    ("EXT4-fs (nvme1n1): I/O error while writing superblock",
     "kernel.fs", "error", "nvme1n1", WATCH),
    ("EXT4-fs (nvme1n1): Invalid checksum for backup superblock 32768",
     "kernel.fs", "error", "nvme1n1", WATCH),
    ("XFS (nvme1n1): Metadata CRC error detected at xfs_agf_read_verify+0xd0/0xf0 [xfs], "
     "xfs_agf block 0x1", "kernel.fs", "error", "nvme1n1", WATCH),
    ("XFS (nvme1n1): SB validate failed with error -74.", "kernel.fs", "error", "nvme1n1", WATCH),
    ('XFS (nvme1n1): metadata I/O error in "xfs_buf_ioend_handle_error+0x10e/0x3f0 [xfs]" at daddr '
     "0x1 len 8 error 5", "kernel.fs", "error", "nvme1n1", WATCH),
    ("XFS (nvme1n1): Metadata I/O Error (0x1) detected at xfs_trans_read_buf_map+0x1/0x2 [xfs] "
     "(fs/xfs/xfs_trans_buf.c:296).  Shutting down filesystem.",
     "kernel.fs", "readonly", "nvme1n1", NOW),
    ("BTRFS warning (device nvme1n1): csum failed root 5 ino 257 off 0 csum 0x1 expected csum 0x2 "
     "mirror 1", "kernel.fs", "error", "nvme1n1", WATCH),
    # out of memory
    ("Out of memory: Killed process 4321 (python) total-vm:1kB, anon-rss:0kB",
     "kernel.oom", "node", "", WATCH),
    ("Out of memory: Kill process 4321 (python) score 1000 or sacrifice child",
     "kernel.oom", "node", "", WATCH),
    ("Memory cgroup out of memory: Killed process 4321 (python) total-vm:1kB, anon-rss:0kB",
     "kernel.oom", "cgroup", "", NOTHING),
    # A user's control group that is named after another's line.
    (oom("/user.slice/u,task_memcg=/system.slice/munge.service", task="munged"),
     "kernel.oom", "cgroup", "", NOTHING),
    (oom(V1, "/step_0/task_3"), "kernel.oom", "job", "", NOTHING),
    (oom(V2, "/step_batch/user/task_0"), "kernel.oom", "job", "", NOTHING),
    (oom("/user.slice/user-1000.slice", "/session-3.scope"), "kernel.oom", "cgroup", "", NOTHING),
    (oom(V1, "/step_0", task="slurmd"), "kernel.oom", "job", "", NOTHING),
    # Where Slurm does not track by control groups, what jobs run lives in slurmd's.
    (oom("/system.slice/slurmd.service", task="hpctl"), "kernel.oom", "cgroup", "", NOTHING),
    (oom("/user.slice/user-1000.slice", "/session-3.scope", task="slurmd"),
     "kernel.oom", "cgroup", "", NOTHING),
    (oom("/user.slice/user-1000.slice", "/a,task=slurmd", task="sh"),
     "kernel.oom", "cgroup", "", NOTHING),
    (oom("/user.slice/user-1000.slice", "/session-3.scope", task="munged"),
     "kernel.oom", "cgroup", "", NOTHING),
    (oom("/system.slice/munge.service", task="munged", uid=1001),
     "kernel.oom", "daemon", "", AFTER),
    (oom(V2, "/step_0/slurm", task="slurmstepd", uid=0), "kernel.oom", "daemon", "", AFTER),
    (oom("/system.slice/hpctl-agent.service", task="hpctl", uid=0),
     "kernel.oom", "daemon", "", AFTER),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=slurmd.service,mems_allowed=0-1,"
     "global_oom,task_memcg=/system.slice/slurmd.service,task=slurmd,pid=997,uid=0",
     "kernel.oom", "daemon", "", AFTER),
    ("oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
     f"task_memcg={V1}/step_0/task_0,task=a,b,pid=1,uid=0,pid=77,uid=1000",
     "kernel.oom", "node", "", WATCH),
    (f"oom-kill:constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=job_1,mems_allowed=1,"
     f"task_memcg={V1}/step_0,task=python,pid=77,uid=1000", "kernel.oom", "numa", "", WATCH),
    # memory
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 "
     "page:0x3fc1d2 offset:0xa40 grain:32)",
     "kernel.memory", "uncorrected", "MC0 CPU_SrcID#0_MC#0_Chan#0_DIMM#0", NOW),
    ("EDAC MC1: 3 CE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#1_DIMM#0 (channel:1 slot:0)",
     "kernel.memory", "corrected", "MC1 CPU_SrcID#1_MC#0_Chan#1_DIMM#0", WATCH),
    ("EDAC MC0: 1 CE on mc#0csrow#1channel#1 (csrow:1 channel:1 page:0x1a2b3c offset:0x100)",
     "kernel.memory", "corrected", "MC0", WATCH),
    ("mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: be00000000010090",
     "kernel.memory", "uncorrected", "cpu12", NOW),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: 9c00004001010090",
     "kernel.memory", "corrected", "cpu3", WATCH),
    ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: bc00000001010090",
     "kernel.memory", "deferred", "cpu3", WATCH),
    ("mce: Uncorrected hardware memory error in user-access at 3fc1d2a40",
     "kernel.memory", "uncorrected", "", NOW),
    ("[Hardware Error]: Uncorrected, software restartable error.",
     "kernel.memory", "uncorrected", "", NOW),
    ("[Hardware Error]: System Fatal error.", "kernel.memory", "uncorrected", "", NOW),
    ("[Hardware Error]: Deferred error, no action required.",
     "kernel.memory", "deferred", "", WATCH),
    ("[Hardware Error]: Corrected error, no action required.",
     "kernel.memory", "corrected", "", WATCH),
    ("mce: [Hardware Error]: Machine check events logged", "kernel.memory", "logged", "", WATCH),
    ("{1}[Hardware Error]: event severity: corrected", "kernel.memory", "corrected", "", WATCH),
    ("{12}[Hardware Error]: event severity: recoverable", "kernel.memory", "logged", "", WATCH),
    ("{1}[Hardware Error]:   error_type: 3, multi-bit ECC",
     "kernel.memory", "uncorrected", "", NOW),
    ("{1}[Hardware Error]:   error_type: 2, single-bit ECC",
     "kernel.memory", "corrected", "", WATCH),
    ("Memory failure: 0x3fc1d2a: Sending SIGBUS to python:4321 due to hardware memory corruption",
     "kernel.memory", "uncorrected", "", NOW),
    ("Memory failure: 0x3fc1d2a: recovery action for clean LRU page: Recovered",
     "kernel.memory", "deferred", "", WATCH),
    ("Memory failure: 0x3fc1d2a: recovery action for free buddy page: Delayed",
     "kernel.memory", "deferred", "", WATCH),
    ("Memory failure: 0x3fc1d2a: recovery action for clean LRU page: Failed",
     "kernel.memory", "uncorrected", "", NOW),
    ("Memory failure: 0x3fc1d2a: recovery action for unknown page: Ignored",
     "kernel.memory", "uncorrected", "", NOW),
    ("Memory failure: 0x3fc1d2a: recovery action for dirty LRU page: Recovered",
     "kernel.memory", "uncorrected", "", NOW),
    # processors
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:1234]",
     "kernel.lockup", "soft", "cpu3", WATCH),
    ("NMI watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [kworker/3:1:99]",
     "kernel.lockup", "soft", "cpu3", WATCH),
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 67s! [python:1234]",
     "kernel.lockup", "soft-long", "cpu3", NOW),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 1",
     "kernel.lockup", "hard", "cpu1", WATCH),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 6", "kernel.lockup", "hard", "cpu6", WATCH),
    ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3",
     "kernel.lockup", "hard", "cpu3", WATCH),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "kernel.lockup", "rcu", "", WATCH),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "kernel.lockup", "rcu", "", WATCH),
    ("INFO: rcu_sched detected stalls on CPUs/tasks:", "kernel.lockup", "rcu", "", WATCH),
    ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 30 jiffies",
     "kernel.lockup", "rcu", "", WATCH),
    ("INFO: task jbd2/nvme1n1p4-:923 blocked for more than 122 seconds.",
     "kernel.lockup", "task", "", WATCH),
    ("INFO: task my: task:77 blocked for more than 362 seconds.",
     "kernel.lockup", "task", "", WATCH),
    # the kernel itself
    ("Kernel panic - not syncing: Fatal exception in interrupt",
     "kernel.crash", "panic", "", NOW),
    ("BUG: unable to handle page fault for address: ffffb0d1c1a3f000",
     "kernel.crash", "oops", "", WATCH),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008",
     "kernel.crash", "oops", "", WATCH),
    ("kernel BUG at mm/slub.c:305!", "kernel.crash", "oops", "", WATCH),
    ("general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] "
     "PREEMPT SMP NOPTI", "kernel.crash", "oops", "", WATCH),
    ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP",
     "kernel.crash", "oops", "", WATCH),
    ("Oops: 0002 [#1] SMP NOPTI", "kernel.crash", "oops", "", WATCH),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "kernel.crash", "oops", "", WATCH),
    ("Unable to handle kernel paging request at virtual address ffff80001",
     "kernel.crash", "oops", "", WATCH),
    ("divide error: 0000 [#1] PREEMPT SMP NOPTI", "kernel.crash", "oops", "", WATCH),
    ("Oops: divide error: 0000 [#1] PREEMPT SMP NOPTI", "kernel.crash", "oops", "", WATCH),
    ("stack segment: 0000 [#1] SMP", "kernel.crash", "oops", "", WATCH),
    ("MCE: Killing python:4321 due to hardware memory corruption fault at 7f0012345678",
     "kernel.memory", "uncorrected", "", NOW),
    ("end_request: I/O error, dev sda, sector 1234", "kernel.block", "io-error", "sda", WATCH),
    ("BTRFS: I/O error while writing superblock", "kernel.fs", "error", "", WATCH),
    ("EXT4-fs warning (device nvme1n1): ext4_end_bio:343: I/O error 10 writing to inode 12",
     "kernel.fs", "error", "nvme1n1", WATCH),
    ("Aborting journal on device nvme1n1-8.", "kernel.fs", "error", "", WATCH),
    ("mlx5_core 0000:5e:00.0: temp_warn:161:(pid 0): High temperature on sensors with bit set 0 1",
     "kernel.mlx5", "health", "0000:5e:00.0", WATCH),
    # of a process
    ("pt_main_thread[4711]: segfault at 7f79 ip 00007f7c sp 00007f7c error 4 in "
     "libnccl.so.2[7f7c7ac00000+d3d3000]", "kernel.process", "nccl", "", NOTHING),
    ("python invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE), order=0, "
     "oom_score_adj=0", "kernel.process", "oom-killer", "", NOTHING),
    # limits
    ("unregister_netdevice: waiting for veth1 to become free. Usage count = 2",
     "kernel.limits", "netdevice", "", WATCH),
    ("ena 0000:00:05.0 eth0: Keep alive watchdog timeout.", "kernel.limits", "reset", "", WATCH),
    ("VFS: file-max limit 1048576 reached", "kernel.limits", "files", "", WATCH),
    ("nf_conntrack: nf_conntrack: table full, dropping packet",
     "kernel.limits", "conntrack", "", WATCH),
    ("neighbour: arp_cache: neighbor table overflow!", "kernel.limits", "neighbors", "", WATCH),
    ("TCP: out of memory -- consider tuning tcp_mem", "kernel.limits", "sockets", "", WATCH),
    ("NETDEV WATCHDOG: eth0 (ena): transmit queue 3 timed out",
     "kernel.limits", "queue", "eth0", WATCH),
    ("mlx5_core 0000:05:00.0 enp5s0: NETDEV WATCHDOG: CPU: 3: transmit queue 3 timed out 5412 ms",
     "kernel.limits", "queue", "enp5s0", WATCH),
    # NVIDIA's modules
    ("NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!",
     "kernel.nvidia", "nvlink", "", AFTER),
    ("NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
     "kernel.nvidia", "nvlink", "", AFTER),
    ("NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x26:0xffff:1482)",
     "kernel.nvidia", "init", "0000:18:00.0", WATCH),
    ("NVRM: API mismatch: the client has the version 570.86.10, but",
     "kernel.nvidia", "version", "", WATCH),
    ("nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further "
     "processing", "kernel.nvidia", "peermem", "", WATCH),
    # file servers
    ("NFS: __nfs4_reclaim_open_state: Lock reclaim failed!", "kernel.nfs", "locks-lost", "", WATCH),
    ("nfs: server 10.0.0.5 not responding, still trying",
     "kernel.nfs", "not-responding", "10.0.0.5", WATCH),
    ("nfs: server fs-1.efs not responding, timed out",
     "kernel.nfs", "not-responding", "fs-1.efs", WATCH),
    ("Lustre: fsx-OST0000-osc-ffff8a01: Connection to fsx-OST0000 (at 10.0.1.5@tcp) was lost; in "
     "progress operations using this service will wait for recovery to complete",
     "kernel.lustre", "connection-lost", "fsx-OST0000", WATCH),
    ("LustreError: 166-1: MGC10.0.1.5@tcp: Connection to MGS (at 10.0.1.5@tcp) was lost; in "
     "progress operations using this service will fail",
     "kernel.lustre", "connection-lost", "MGC10.0.1.5@tcp", WATCH),
    ("LustreError: 167-0: fsx-MDT0000-mdc-ffff8a01: This client was evicted by fsx-MDT0000; in "
     "progress operations using this service will fail.",
     "kernel.lustre", "evicted", "fsx-MDT0000", WATCH),
    ("LustreError: 4242:0:(osc_cache.c:1290:osc_completion()) LBUG",
     "kernel.lustre", "bug", "", NOW),
    # network cards
    ("efa 0000:00:06.0 rdmap0s6: The device didn't send any completion for admin cmd CREATE_QP(1) "
     "status 0 (ctx: 0x1, sq producer: 4, sq consumer: 3, cq consumer: 3)",
     "kernel.efa", "unanswered", "rdmap0s6", NOW),
    ("infiniband rdmap0s6: Wait for completion (polling) timeout",
     "kernel.efa", "unanswered", "rdmap0s6", NOW),
    ("efa 0000:00:06.0 rdmap0s6: Admin queue is closed",
     "kernel.efa", "unanswered", "rdmap0s6", NOW),
    ("efa 0000:00:06.0 rdmap0s6: The device sent a completion but the driver didn't receive any "
     "MSI-X interrupt for admin cmd REG_MR(7) status 1",
     "kernel.efa", "interrupt", "rdmap0s6", NOW),
    ("efa 0000:00:06.0 rdmap0s6: Reading register timed out. expected: req id[3] offset[0x8] "
     "actual: req id[2] offset[0x8]", "kernel.efa", "register", "rdmap0s6", NOW),
    ("mlx5_core 0000:5e:00.0: poll_health:805:(pid 0): Fatal error 1 detected",
     "kernel.mlx5", "fatal", "0000:5e:00.0", NOW),
    ("efa 0000:00:06.0 efa_0: Reset indication didn't turn off",
     "kernel.efa", "reset", "efa_0", NOW),
    ("mlx5_core 0000:5e:00.0: wait_func:1134:(pid 77): 2ERR_QP(0x507) timeout. Will cause a leak "
     "of a command resource", "kernel.mlx5", "fatal", "0000:5e:00.0", NOW),
    ("mlx5_core 0000:5e:00.0: cb_timeout_handler:864:(pid 7): cmd[3]: CREATE_MKEY(0x200) Async, "
     "timeout. Will cause a leak of a command resource",
     "kernel.mlx5", "fatal", "0000:5e:00.0", NOW),
    ("mlx5_core 0000:5e:00.0: wait_func_handle_exec_timeout:1113:(pid 7): cmd[0]: "
     "DESTROY_EQ(0x302) No done completion from FW, timeout. Will cause a leak of a command "
     "resource", "kernel.mlx5", "fatal", "0000:5e:00.0", NOW),
    ("mlx5_core 0000:5e:00.0: print_health_info:430:(pid 0): synd 0x8: unrecoverable hardware "
     "error", "kernel.mlx5", "unrecoverable", "0000:5e:00.0", NOW),
    ("mlx5_core 0000:5e:00.0: print_health_info:424:(pid 0): Health issue observed, unrecoverable "
     "hardware error, severity(0) EMERGENCY:",
     "kernel.mlx5", "unrecoverable", "0000:5e:00.0", NOW),
    ("mlx5_core 0000:5e:00.0: print_health_info:430:(pid 0): synd 0x1: firmware internal error",
     "kernel.mlx5", "health", "0000:5e:00.0", WATCH),
    ("mlx5_core 0000:5e:00.1 enp94s0f1: TX timeout detected",
     "kernel.mlx5", "timeout", "0000:5e:00.1", WATCH),
    ("mlx5_core 0000:5e:00.1 enp94s0f1: RX timeout on channel: 3, ICOSQ: 0x1 RQ: 0x2, CQ: 0x3",
     "kernel.mlx5", "timeout", "0000:5e:00.1", WATCH),
    ("mlx5_core 0000:5e:00.0: Port module event: module 0, Cable unplugged",
     "kernel.mlx5", "module", "0000:5e:00.0", WATCH),
    ("mlx5_core 0000:5e:00.0: mlx5_cmd_out_err:838:(pid 77): ACCESS_REG(0x805) op_mod(0x1) failed, "
     "status bad resource(0x5), syndrome (0x305684), err(-22)",
     "kernel.mlx5", "command", "0000:5e:00.0", NOTHING),
    ("mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature",
     "kernel.mlx5", "module", "0000:5e:00.0", WATCH),
    ("mlx5_core 0000:5e:00.0: mlx5_pcie_event:304:(pid 0): Detected insufficient power on the "
     "PCIe slot (27W).", "kernel.mlx5", "power", "0000:5e:00.0", WATCH),
    # Neuron
    ("NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 "
     "hostname=ip-172-31-61-252 nd-id=0 nc-id=0 serial-num=19fcda00f5ff6eb9 "
     "action=TERMINATE_INSTANCE", "kernel.neuron", "sram", "neuron0", NOW),
    ("2026-05-04T12:00:00Z NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR nd-id=11 nc-id=1",
     "kernel.neuron", "hbm", "neuron11", NOW),
    ("neuron: NEURON_HW_ERR=NC_UNCORRECTABLE_ERROR", "kernel.neuron", "nc", "", NOW),
    ("NEURON_HW_ERR=DMA_ERROR nd-id=3", "kernel.neuron", "dma", "neuron3", NOW),
    ("NEURON_HW_ERR=SOMETHING_NEW nd-id=3", "kernel.neuron", "unknown", "neuron3", WATCH),
    # the GPU's families are dispatched too
    ("NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
     "kernel.xid", "79", "0000:c1:00.0", None),
    ("nvidia-nvswitch3: SXid (PCI:0000:c2:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
     "kernel.sxid", "20034", "0000:c2:00.0", None),
]  # fmt: skip

BENIGN = [
    "infiniband mlx5_0: Wait for completion (polling) timeout",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    # A network interface is named by who makes it, in a namespace of theirs too.
    "Oops: entered promiscuous mode",
    "",
    "nvme nvme0: 12/0/0 default/read/poll queues",
    "nvme nvme0: Abort status: 0x371",
    "nvme 0000:81:00.0:   device [144d:a80a] error status/mask=00000001/0000e000",
    "nvme 0000:81:00.0:    [ 0] RxErr                  (First)",
    "pcieport 0000:80:01.1: AER: enabled with IRQ 33",
    "pcieport 0000:80:01.1: AER: device recovery successful",
    "pcieport 0000:80:01.1: AER: broadcast error_detected message",
    "I/O error, dev loop0, sector 10071568 op 0x0:(READ) flags 0x81700",
    "I/O error, dev fd0, sector 0 op 0x0:(READ)",
    "blk_update_request: I/O error, dev sr0, sector 0",
    "critical target error, dev nvme1n1, sector 0 op 0x3:(DISCARD) flags 0x800",
    "Buffer I/O error on dev loop3, logical block 12, async page read",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Quota mode: none.",
    "EXT4-fs (nvme0n1p1): re-mounted. Quota mode: none.",
    "EXT4-fs (loop4): Remounting filesystem read-only",
    "XFS (nvme1n1): Mounting V5 Filesystem",
    "XFS (nvme1n1): Unmounting Filesystem",
    "XFS (vdc): User initiated shutdown received. Shutting down filesystem",
    "XFS (vdc): Log I/O Error (0x6) detected at xfs_fs_goingdown+0x55/0xb0 "
    "(fs/xfs/xfs_fsops.c:452).  Shutting down filesystem.",
    "BTRFS info (device sda1): disk space caching is enabled",
    "BTRFS info (device loop7): forced readonly",
    "oom_reaper: reaped process 4321 (python), now anon-rss:0kB",
    "EDAC MC: Ver: 3.0.0",
    "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0",
    "mce: CPU supports 22 MCE banks",
    "mce: CPU7: Core temperature above threshold, cpu clock throttled (total events = 1)",
    "mce: [Hardware Error]: TSC 0 ADDR 3fc1d2a40 MISC 200001c008c800",
    "BERT: Error records from previous boot:",
    "[Hardware Error]: event severity: fatal",
    "[Hardware Error]:   error_type: 3, multi-bit ECC",
    "{1}[Hardware Error]: event severity: info",
    "Memory failure: 0x3fc1d2a: page already poisoned",
    "watchdog: Delayed init of the lockup detector failed: -19",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
    "rcu: Hierarchical RCU implementation.",
    "INFO: lockdep is turned off.",
    "Kernel command line: panic=10 root=/dev/nvme0n1p1",
    "general: nothing",
    "Internal memory is fine",
    "nfs: Deprecated parameter 'intr'",
    "Lustre: Mounted fsx-client",
    "Lustre: 2345:0:(client.c:2229:ptlrpc_expire_one_request()) @@@ Request sent has timed out "
    "for slow reply",
    "LustreError: 11-0: fsx-OST0000-osc-ffff8a: operation ost_read to node 10.0.1.5@tcp "
    "failed: rc = -107",
    "efa 0000:00:06.0: Setup irq:46 name:efa-mgmnt@pci:0000:00:06.0",
    "efa 0000:00:06.0 rdmap0s6: Failed to process command CREATE_QP (opcode 1) comp_status 7 "
    "err -22",
    "infiniband rdmap0s6: Couldn't open port 1",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "neuron:reset: starting",
    "random: crng init done",
    "python[1234]: segfault at 0 ip 00007f error 4 in libcuda.so.1",
    "RIP: 0010:nv_poll+0x12/0x80 [nvidia]",
]
