"""Why a drafter cannot be used."""


class DrafterError(ValueError):
    """The checkpoint is damaged, unknown or of another target; one sentence for the user."""
