"""Messages between agent, daemon, jobs and commands, and the proof of who sent them.

The room promises that a message is JSON with a version and bounds, that what exceeds a bound is
refused by the receiver, and that a sender is believed only for what its credential proves.

- Agent to daemon: `reports` defines the bodies, `authentication` accepts or refuses them by a
  MUNGE credential or the key of a session.
- Job to daemon: `job_reports` defines the bodies, `job_report_client` sends them from inside the
  job; it raises nothing and gives up within seconds.
- Commands to daemon: `make_authenticated_post_route` makes a route of the intake whose caller MUNGE
proves.
- Daemon to agent: orders and `stack_request` travel in the answer to a report.
- `munge` calls libmunge; `heads` finds the head node that leads and checks its proof; `systemd`
  speaks sd_notify(3) and sd_listen_fds(3).

The senders run on compute nodes, as root in the agent and as the owner in a job. `authentication`
runs in the process of the intake on the head node. `job_reports` and `stack_request` are pure; the
other modules talk to sockets or to munged.

Begin with `reports.py`, then `munge.py` and `authentication.py`. The room decides nothing about a
node or a job, and stores nothing durable.
"""
