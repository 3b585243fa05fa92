"""The version of this package, which runs and pages state."""

__version__ = "0.1.0"
