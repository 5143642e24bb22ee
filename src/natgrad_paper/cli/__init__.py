"""The `natgrad` command, one file per command."""
