"""Clusters as a whole: cluster.yaml, its validation, and what creates and changes a cluster.

The room promises that an order which cannot be undone is shown first, is sent so that it cannot
take effect twice, and is looked for in the world before it is repeated. A command that was killed
is simply run again.

- `spec` reads cluster.yaml, `request` turns it into requests, `cluster_file` writes a first file.
- `validate` gathers facts from AWS in parallel and judges the file before it costs money.
- `diff` compares a spec with a living cluster (pure); `apply` sends the orders; `watch` follows
  the cluster, and `progress` judges whether the wait is over (pure).
- Orders for named nodes: `node_order_plan` refuses (pure) and finds what an earlier command
  ordered; `order_loop` runs the engine's loop in the command, over `order_slurm` and `order_cloud`;
  `order_follow` follows the daemon's recoveries; `order_progress` puts both in words (pure).
- `fleet` and its two modules join the names of a node; `failures` explains failed instances.
- `bundle` and its two modules make the lifecycle scripts that a node runs at its birth;
  `iam_policies` the IAM policies; `storage` the links between FSx and S3; `capacity` the training
  plans; `maintenance` and its two modules long orders for whole groups.
- `commands` holds one module for each command.

It all runs in commands, on the machine of an operator or on the head node. The daemon imports none
of it.

Begin with `spec/cluster.py`, `request.py` and `apply.py`. AWS is reached through the Aws port
(`hpctl/sagemaker/aws.py` implements it); no module here creates a client of boto3.
"""
