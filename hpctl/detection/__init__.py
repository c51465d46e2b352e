"""The agent: the service on every compute node that states findings about its hardware.

The room promises that the agent never hangs with what it watches, stays within its budget of CPU
and memory, and that a finding states what was observed and never what should be done.

`service` is the main loop, blocked on the kernel's log. These run in parallel:

- `kmsg` and `kernel` read and judge log lines; `findings` folds a burst into one finding.
- `runner` runs the timed `checks`, one after the other, on one thread. A check has a `gather` that
  touches the machine and a `judge` that is pure (`check` explains both); `conditions` decides for
  how long a finding lasts.
- `nvml` keeps NVIDIA's library in a child process; `probe` does the same for mounts and disks.
- `outside` listens to scripts, plugins and HyperPod's health agent, on separate threads.
- `send` reports to the head node over one connection; `spool` keeps findings over a restart;
  `budget` drops checks when the agent uses too much.

`hpctl/cli/agent.py` puts the agent together, with the order handler and the inbox of results that
`hpctl.nodes` adds. The commands of the room are `triage` and `report_command`; `check_once` is
behind `hpctl agent check`.

Begin with `service.py`, `check.py` and `findings.py`. The room imports nothing of the daemon,
loads NVML in no process but the child, and never kills a process that is inside the driver.
"""
