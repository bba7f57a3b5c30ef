"""What is said of the inputs of a call is what was measured of them."""

from trueline.comparison.judgement.cause import Cause, in_words


def test_the_sentence_claims_no_more_than_was_measured():
    assert in_words(Cause("computation")) == "its inputs and arguments agree, so its computation differs."
    assert in_words(Cause("computation", by_statistics=True)) == (
        "its inputs and arguments agree as far as statistics show, so probably its computation differs."
    )
    assert in_words(Cause("backward", by_statistics=True, unknown=("0.0/r0/fwd/mul#0:in1",))) == (
        "its incoming gradient and its forward inputs agree as far as statistics show, but for 0.0/r0/fwd/mul#0:in1, "
        "which cannot be compared: that differs, or its backward computation."
    )
    assert in_words(Cause("received")).startswith("the gradients that add up to it agree, so a hook on this tensor")
    assert "as far as they were recorded, so probably a hook" in in_words(Cause("received", by_statistics=True))
