"""The engine: from facts to decisions, from decisions to durable steps. It runs in the daemon.

The room promises that no recovery is lost, that no step is repeated without a look at the world,
and that a step whose outcome stays unknown is escalated to a person.

One cycle of `loop`:

1. `observe` builds one View of Slurm, the cloud, the health of the nodes and the journaled state.
2. `requests` answers the requests of operators that `request_intake` has stored.
3. `plan` collects candidates, passes each through `gates`, and opens recoveries or notes a hold
   with its reason.
4. `advance` asks every open recovery for its next move, step or wait.
5. `execute` appends StepStarted, calls the port once, and appends StepResolved.

A cycle looks at the whole world again, so a restart is only another cycle. `kinds` says what the
engine needs of a kind of recovery; the kinds themselves lie in rooms above and are handed over by
`hpctl/daemon/kinds.py`.

`plan`, `gates`, `advance`, `requests`, `retire`, `timeline` and `view` are pure. `execute` is the
only module of the daemon that changes the world. `adapters` is the only module that knows every
adapter. `live_config` is the configuration in force, which a reload replaces as a whole, and
`loop_port` the loop as other threads use it. `leadership` holds the lease. `world_server` offers
what the last cycle saw and decided; `world` is that as the commands and the page read it, by
`world_client`, or by `world_offline` where no daemon answers. `make_cluster_status_view`,
`make_nodes_view` and `build_explain_view` build one value each from a world; the commands print it
and the page renders it. What features add to an explanation comes as `ExplainExtensions`. A view
never leaves out that a source could not be read. `views` holds the parts of their JSON that several
commands share.

Begin with `loop.py`, then `plan.py`, `kinds.py` and `execute.py`. The engine imports no kind of
recovery, and nothing in it waits for a call to the cloud.
"""
