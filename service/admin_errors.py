"""What `/admin/reload` answers when it does not reload, besides what `errors.py` has."""

from lengnuan.service.errors import ServiceError


class AdminRefused(ServiceError):
    """X-Admin-Token is missing, or is not what the service was given."""

    status, code, outcome = 403, "admin_refused", "invalid"


class ReloadRunning(ServiceError):
    """Another reload is in progress."""

    status, code, outcome = 409, "reload_running", "invalid"


class ReloadRefused(ServiceError):
    """A bundle can't be served; the one before is served on."""

    status, code, outcome = 409, "reload_refused", "invalid"
