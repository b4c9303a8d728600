"""What `leash train` makes of a command line."""

from leash_trl.cli.training_arguments import arguments_of, given_fields


def parse(argv):
    """Script, training, model and data arguments."""
    return arguments_of(given_fields(argv))
