"""What a job asks of fast saves, as its Comment and its helpers hold it."""

from msgspec import Struct


class FastCheckpointSaveOptions(Struct, frozen=True, omit_defaults=True):
    """What a job asks of fast saves. `dir` may hold placeholders in the Comment.

    `memory`: the directory lies in the nodes' memory, and `size` bytes is what saves and copies may
    take of it on each; 0: what there is. `flush_s`: from one flush to the next. `replicas`: copies
    on other nodes. `rate`: bytes a second that a node fetches. `keep`: what lies on the nodes stays
    there when the job has ended.
    """

    dir: str
    memory: bool = False
    size: int = 0
    flush_s: int = 900
    replicas: int = 1
    rate: int = 1 << 30
    keep: bool = False
