"""What can end a training command, each with its exit code.

TrainingError
├── ResumeDiffers        1   a run that was killed did not end like the one that was not
├── UsageError           2   a wrong option, config key or path
├── DataRefused          3   the data can't be trained on as it is
├── TrainingCollapsed    5   the model learnt nothing
├── NotFinite            6   loss or weights became NaN or infinite
├── ParityFailed         8   the exported graph does not answer like the network
├── ProcessLost          9   one of several processes has gone; the same command goes on
├── Held                10   a candidate that nothing shows to be better
├── RejectedCandidate   11   a candidate that is worse than a limit allows
├── DriftFound          12   recent texts do not look like those of the training time
├── StoreBusy           75   S3 gives no answer, or another promotion came first; the same command again
└── Interrupted         75   told to stop; the same command goes on
"""


class TrainingError(Exception):
    """Ends the command with `exit_code` and its message; nothing already written is lost."""

    exit_code = 1


class ResumeDiffers(TrainingError):
    """A run that was killed did not end like the one that was not."""

    exit_code = 1


class UsageError(TrainingError):
    """A wrong option, config key or path."""

    exit_code = 2


class DataRefused(TrainingError):
    """The data can't be trained on as it is."""

    exit_code = 3


class TrainingCollapsed(TrainingError):
    """The model learnt nothing: one class for everything, or a loss that never fell."""

    exit_code = 5


class NotFinite(TrainingError):
    """Loss or weights became NaN or infinite."""

    exit_code = 6


class ParityFailed(TrainingError):
    """The exported graph does not answer like the network it was made from."""

    exit_code = 8


class ProcessLost(TrainingError):
    """One of the processes that train together has gone; the same command goes on from the newest checkpoint."""

    exit_code = 9


class Held(TrainingError):
    """Nothing shows that the candidate is better; what is live stays."""

    exit_code = 10


class RejectedCandidate(TrainingError):
    """The candidate is worse than a limit allows; what is live stays."""

    exit_code = 11


class StoreBusy(TrainingError):
    """S3 gives no answer, or another promotion came first: give the same command again."""

    exit_code = 75


class DriftFound(TrainingError):
    """Recent texts, or the answers to them, do not look like those of the training time."""

    exit_code = 12


class Interrupted(TrainingError):
    """SIGTERM or Ctrl-C: a checkpoint is there, and the same command goes on from it."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h
