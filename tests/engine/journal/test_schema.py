"""The records of the journal: a daemon reads what the one before it has written.

`journal_schema.json` pins the name of each event and the names and types of its fields. A change
that old journals survive (a new event, a new field with a default) is accepted by
`python -m tests.engine.journal.test_schema`; any other one needs a migration.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from hpctl.engine.journal.events import EVENT_TYPES

GOLDEN = Path(__file__).with_name("journal_schema.json")


def test_the_records_are_those_that_journals_hold():
    assert describe_records() == json.loads(GOLDEN.read_text()), __doc__


def describe_records() -> dict[str, Any]:
    """Return the JSON schema of each event and of the types in it, without descriptions."""
    references, types = msgspec.json.schema_components(
        EVENT_TYPES.values(), ref_template="#/{name}"
    )
    events = dict(zip(EVENT_TYPES, references, strict=True))
    return json.loads(json.dumps(_drop_descriptions({"events": events, "types": types})))


def _drop_descriptions(schema: Any) -> Any:
    """Keep what is written down: no docstring, and no name of a module."""
    if isinstance(schema, dict):
        return {
            _drop_module(name): _drop_descriptions(value)
            for name, value in schema.items()
            if name != "description"
        }
    if isinstance(schema, list):
        return [_drop_descriptions(value) for value in schema]
    return _drop_module(schema) if isinstance(schema, str) else schema


def _drop_module(text: str) -> str:
    """Return `change.ChangeKind` for `hpctl.vocabulary.change.ChangeKind`: msgspec names types that
    share a name with their module."""
    return re.sub(r"hpctl\.(\w+\.)*(?=\w+\.\w+$)", "", text)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(describe_records(), indent=1, sort_keys=True) + "\n")
