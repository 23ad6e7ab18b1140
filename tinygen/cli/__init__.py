"""The command line: subcommands, flags, help and shell completion."""
