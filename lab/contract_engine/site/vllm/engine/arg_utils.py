"""Stand-in (contract engine) for the engine's arguments: none is looked at before the start."""


class AsyncEngineArgs:
    """What is parsed, as it is."""

    @classmethod
    def from_cli_args(cls, args):
        """Take everything."""
        del args
        return cls()
