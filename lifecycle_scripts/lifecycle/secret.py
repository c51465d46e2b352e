"""Passwords: from AWS Secrets Manager or a file of the node, and never printed."""

from __future__ import annotations

import json

from lifecycle.failure import Failure
from lifecycle.node import Node


def secret(node: Node, arn: str) -> str:
    """Return the password in a secret of Secrets Manager. Raises Failure where it cannot be had."""
    region = arn.split(":")[3] if arn.count(":") > 3 else node.region
    asked = ("secretsmanager", "get-secret-value", "--region", region, "--secret-id", arn)
    form = ("--query", "SecretString", "--output", "text")
    output = node.machine.run("aws", *asked, *form, timeout=60, quiet=True)
    try:
        return str(json.loads(output)["password"])
    except (ValueError, KeyError, TypeError):
        raise Failure(f"the secret {arn} holds no JSON with a password") from None
