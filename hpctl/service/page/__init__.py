"""The read-only web page: a process of its own that reads as the commands do (docs/adr/0066)."""
