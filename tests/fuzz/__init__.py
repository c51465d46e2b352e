"""Everything that reads what others wrote, fed with what nobody would write."""
