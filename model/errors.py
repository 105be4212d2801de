"""What can be wrong with a bundle or with the machine that should run it.

ModelError
├── BundleRefused       the folder is not a whole, untouched bundle that this code understands
└── EngineUnavailable   the wanted device or runtime is not here
"""


class ModelError(Exception):
    """A bundle can't be used; the message says which file or setting, and what to do."""


class BundleRefused(ModelError):
    """The folder is not a whole, untouched bundle that this code understands."""


class EngineUnavailable(ModelError):
    """The wanted device or runtime is not here."""
