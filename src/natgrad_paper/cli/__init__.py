"""The `natgrad` command, one file per subcommand. Heavy imports come where they are needed, so `--help` is quick."""
