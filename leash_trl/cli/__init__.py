"""The `leash` command: reads options, calls the other rooms and returns an exit code."""
