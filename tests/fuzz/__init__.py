"""Random sequences of what each ACL user may send, and the rules that hold after each: start at `sequences.py`.

`make test` repeats the corpus, which is what was found once, and a few fixed sequences; `make chaos` makes up new ones
for FUZZ_MINUTES minutes.
"""
