"""The seeded corpus of slow and lossy nodes, and what is scored on it. States: docs/grey.md."""
