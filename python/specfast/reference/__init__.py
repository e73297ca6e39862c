"""Every op in plain torch: the meaning of the op and the only oracle of the tests."""

from specfast.reference.accept import accept_chain as accept_chain
from specfast.reference.accept import accept_tree as accept_tree
