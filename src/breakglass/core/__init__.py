"""The rules, the session machine and the codecs: pure functions and values, no I/O, no clock (`now` is an argument)."""
