"""What the daemon serves and sends: the intake, metrics, alerts, notifications, the web page.

The room promises that a peer which is slow, hostile or absent costs the loop nothing: it is served
by another process or another thread.

- `intake`: the HTTP endpoint of agents, jobs, operators and Prometheus, in a separate process;
  `intake/line.py` is what the daemon says to it.
- `metrics`: counts in the loop; a scrape only prints. `alert_gauges`: what is so now, and since
  when. `observability/` holds alert rules, their runbook and dashboards, which
  `observability_command` writes out.
- `alerts`: findings from Prometheus by Alertmanager's webhook, closed unless a token is
  configured; `node_directory` knows which nodes they may name, on a leader and on a standby.
- `notify`: which users are notified of what, by an outbox in the journal's database.
- `page`: the read-only web page, in a separate process that reads as the commands do.

The routes of the intake hand what they accept to those that own it: `hpctl/engine/node_health.py`
for reports, `hpctl/engine/request_intake.py` for requests. Routes of other rooms come from the list
in `hpctl/daemon/intake.py`. `checks` says whether this room's settings can work before the daemon
starts.

`notify/decide.py` and `notify/outbox.py` are pure. Begin with `intake/app.py` and
`intake/process.py`. Nothing here changes a node or a job, and the page writes nothing.
"""
