"""Bits of ``status`` and values of ``finish_reason``; csrc/core/status.h has those of the ops."""

from enum import IntEnum, IntFlag


class Status(IntFlag):
    """What an op met in one request's data; its record is legal all the same.

    NAN_LOGITS : a row that was visited holds a NaN
    EMPTY_SUPPORT : a row that was visited has no value above -inf
    BAD_PARAM : a length, a row offset, a page, a capacity, a confidence or a sampling parameter
        out of range
    BAD_TOKEN : a draft or a prediction outside the vocabulary
    BAD_TREE : a parent, child, sibling or row index that makes no tree
    ZERO_RESIDUAL : no mass was left to draw the last token from; it is the last kept id
    BAD_Q : a proposal that is no probability, or has no row, at a draft that was tested
    BAD_PATH : a path or slots that cannot be relocated; nothing was moved
    NAN_DRAFTS : the engine's alone: numbers of a drafter that draft nothing, NaN or all -inf; its
        drafts from there on were dropped
    """

    OK = 0
    NAN_LOGITS = 1 << 0
    EMPTY_SUPPORT = 1 << 1
    BAD_PARAM = 1 << 2
    BAD_TOKEN = 1 << 3
    BAD_TREE = 1 << 4
    ZERO_RESIDUAL = 1 << 5
    BAD_Q = 1 << 6
    BAD_PATH = 1 << 7
    NAN_DRAFTS = 1 << 8


class FinishReason(IntEnum):
    """Why a request ended in this round; ABORT is the engine's alone, no op gives it."""

    NOT_FINISHED = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    ABORT = 4
