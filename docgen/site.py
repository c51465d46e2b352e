"""A hook of MkDocs (mkdocs.yml): the decisions stand in the navigation without a list to keep."""

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Put every file of docs/adr below "Decisions"."""
    folder = Path(config["docs_dir"]) / "adr"
    pages = sorted(f"adr/{path.name}" for path in folder.glob("0*.md"))
    for section in config["nav"]:
        for entry in section.get("Explanation", []):
            if isinstance(entry, dict) and "Decisions" in entry:
                entry["Decisions"] = ["adr/README.md", *pages]
    return config
