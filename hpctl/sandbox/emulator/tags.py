"""AddTags, ListTags and DeleteTags, for clusters."""

from __future__ import annotations

from dataclasses import dataclass

from hpctl.sandbox.emulator.errors import validation
from hpctl.sandbox.emulator.shapes import Body
from hpctl.sandbox.emulator.state import World

MAX_TAGS = 50


@dataclass(slots=True)
class TagOperations:
    """The tags of clusters, kept in the order in which they were first given."""

    world: World

    def add(self, request: Body) -> Body:
        """AddTags: a key that is there gets the new value."""
        cluster = self.world.cluster(request["ResourceArn"])
        tags = {t["Key"]: t["Value"] for t in cluster.spec.get("Tags", ())}
        tags.update({t["Key"]: t["Value"] for t in request["Tags"]})
        if len(tags) > MAX_TAGS:
            raise validation(f"A resource has at most {MAX_TAGS} tags.")
        cluster.spec["Tags"] = [{"Key": k, "Value": v} for k, v in tags.items()]
        return {"Tags": cluster.spec["Tags"]}

    def list(self, request: Body) -> Body:
        """ListTags. There is never a second page: a page has at least 50 entries."""
        return {"Tags": self.world.cluster(request["ResourceArn"]).spec.get("Tags", [])}

    def delete(self, request: Body) -> Body:
        """DeleteTags: keys that are not there are no error."""
        cluster = self.world.cluster(request["ResourceArn"])
        tags = cluster.spec.get("Tags", [])
        cluster.spec["Tags"] = [t for t in tags if t["Key"] not in request["TagKeys"]]
        return {}
