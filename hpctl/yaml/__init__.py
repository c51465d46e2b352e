"""Files that people write in YAML."""
