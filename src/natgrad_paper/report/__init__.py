"""Reports: logs into tables, curves, judged claims, and one page."""
