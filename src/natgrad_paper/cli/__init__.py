"""The `natgrad` command, one file per command. Heavy imports wait until one needs them, so that `--help` is quick."""
