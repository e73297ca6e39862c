"""Thin documented wrappers over ``torch.ops.specfast``."""
