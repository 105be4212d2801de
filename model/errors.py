"""What can be wrong with a bundle, with the machine that should run it, or with a run.

ModelError
├── BundleRefused       the folder is not a whole, untouched bundle that this code understands
└── EngineUnavailable   the wanted device or runtime is not here
"""

# Runtimes have no class of their own for it. ONNX Runtime: "Failed to allocate memory for requested buffer of size …",
# "bad allocation", and CUDA's "out of memory" and "CUBLAS_STATUS_ALLOC_FAILED"; OpenVINO: "Failed to allocate … bytes
# of memory", "std::bad_alloc"; oneDNN below it: "could not allocate".
_SIGNS = ("failed to allocate", "could not allocate", "bad_alloc", "bad allocation", "out of memory", "alloc_failed")


class ModelError(Exception):
    """A bundle can't be used; the message says which file or setting, and what to do."""


class BundleRefused(ModelError):
    """The folder is not a whole, untouched bundle that this code understands."""


class EngineUnavailable(ModelError):
    """The wanted device or runtime is not here."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a run of an engine failed for want of memory, of the host or of the device: less at once may work."""
    message = str(error).lower()
    return isinstance(error, MemoryError) or any(sign in message for sign in _SIGNS)
