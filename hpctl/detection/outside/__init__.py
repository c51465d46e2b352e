"""Findings from other sources on the node: scripts, plugins of the site, HyperPod's health
monitoring agent.

`local_server` is the agent's unix socket, `report_request` the messages on it, `reported` the table
of the reports, `node_verdict` the answer that a prolog requests, and `ask` the caller's side.
`plugins` runs executables of the site, each as a `plugin_child`. `hma_log`, `hma_records` and
`hma_watch` follow the log of HyperPod's agent. `sources` gives all of it to the agent's main loop
as one object. Only files that only root can have written are trusted or run (`trust`).
"""
