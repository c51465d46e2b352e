"""SageMaker HyperPod and S3 behind the ports, and the provider of a cluster that has no cloud.

The room promises that no other room reads an error code of AWS. `classify` is the one table:
Rejected only where an order certainly was not taken, Ambiguous where that is unknown.

- `provider` implements the Provider port for the daemon: instances are addressed by instance id,
  reads are retried, mutations are sent once with botocore's own retries off.
- `aws` implements the Aws port for the commands that create and change clusters.
- `objects` reads an S3 bucket for the search of checkpoints; errors leave it as OSError.
- `failure_causes` explains why an instance did not come up; `update_cluster` restates a described
  cluster in the words of a request.
- `no_provider` implements the Provider port where there is no cloud: drain and requeue only.

`classify`, `failure_causes` and `update_cluster` are pure. `provider` runs in the daemon, on
threads apart from the loop, and in commands that read; `aws` and `objects` run in commands, those
that run inside a job included.

Begin with `provider.py` and `classify.py`. Besides the sandbox, this is the only room that imports
boto3. It never repeats a mutation: repeating is decided by the recovery that asked.
"""
