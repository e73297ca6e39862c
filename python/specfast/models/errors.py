"""Why a model cannot be had."""


class ModelError(RuntimeError):
    """The model is missing or damaged; the message is one sentence for the user."""
