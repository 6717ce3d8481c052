"""caldrix compiles a language model for the machine it stands on and runs it."""

__version__ = "0.1.2"
