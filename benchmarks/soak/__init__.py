"""Minutes of random requests, with plain decoding beside them."""
