"""What others on the node say: scripts, plugins of the site, HyperPod's health monitoring agent.

`local_server` is the agent's unix socket, `report_request` the messages on it, `reported` the
table of what was told, `node_verdict` the answer that a prolog asks for, and `ask` the caller's
side. `plugins` runs executables of the site, each as a `plugin_child`. `hma_log`, `hma_records`
and `hma_watch` follow the log of HyperPod's agent. `sources` gives all of it to the agent's main
loop as one object. Only what root alone can have written is believed or run (`trust`).
"""
