"""Reports: from logs to tables, curves, judged claims, and one page."""
