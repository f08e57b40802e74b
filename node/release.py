"""Which release these programs are of: the version of pyproject.toml, which does not come to a node."""

RELEASE = "0.1.0"
