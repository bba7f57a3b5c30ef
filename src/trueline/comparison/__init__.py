"""A Run and its reference: matched, merged, expected differences, judged."""
