"""The treatment of a faulty node: drain, empty, repair, verify, return.

The room promises that a recovery acts on one generation of a node (name, instance id, boot id),
never on its successor, and that a drain of an operator is never lifted. The record and its
transition table are in `hpctl.vocabulary.node_recovery`.

- `kind` is what the engine drives: it finds candidates beyond the faulty nodes, advances every open
  recovery, and lists the orders that operators may give.
- `facts` takes what a recovery needs from the view; `actors` reads what HyperPod and operators did
  to the node meanwhile; `advance` returns the next move, step or wait, one function for each phase.
- `by_hand` returns the answer to an order that a command carries out itself.
- `testing` defines what a room that tests nodes adds; `acceptance` is that room, whose promise is
  that a node passes a test before it serves again. `culprit` searches a group for the node that is
  slow or hangs.
- `windows` is the room of maintenance windows: making room before one, verifying after it.
- `before_remedy` defines what a room adds between an empty node and its remedy; `evidence` is that
  room, which keeps what the node shows.
- `agent_orders` opens the daemon's orders on the node; `gpu_reset` resets GPUs there.
- `orders_command` holds `hpctl pause`, `approve`, `replace` and the other requests to the daemon;
  `order_watch` follows what an order became.

`facts`, `actors`, `by_hand`, `testing`, `before_remedy`, `advance` and `kind` are pure and run in
the daemon, whose engine executes the steps (`hpctl/engine/execute.py`), and in `hpctl cluster
replace`, `reboot` and `delete-nodes`, which run the same loop (`hpctl/clusters/order_loop.py`).
`agent_orders` and `gpu_reset` run in the agent, as root; `culprit` is pure and runs in `hpctl
acceptance culprit`. The commands of `orders_command` append requests and change nothing themselves.

Begin with `advance.py` and the table in `hpctl/vocabulary/node_recovery.py`, then `kind.py`. No
decision calls a port. A phase looks first whether its effect can be seen already, and only then
asks for the step.
"""
