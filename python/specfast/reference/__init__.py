"""Every op in plain torch: the meaning of the op and the only oracle of the tests."""
