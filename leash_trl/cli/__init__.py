"""The `leash` command: parse, call, exit code."""
