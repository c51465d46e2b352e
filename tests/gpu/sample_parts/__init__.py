"""Parts that behave badly, for the tests of the frame."""
