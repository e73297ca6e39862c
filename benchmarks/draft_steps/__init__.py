"""Draft steps of every family, in a graph."""
