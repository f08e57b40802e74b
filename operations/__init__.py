"""The pyinfra operations that several roles use, and the run that they belong to."""
