"""What HyperPod runs on a node at birth: idempotent steps, each with a state, a limit and tries.

Standard library alone, Python 3.8 or later: it runs on the AMI's own interpreter, before anything
could be installed.
"""
