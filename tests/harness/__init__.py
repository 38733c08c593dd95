"""What tests of whole operations stand on: a world to run them in, and one function that checks
every invariant.

A test takes the fixture `world`, connects it to a remote, submits, lets it settle, and asserts its
own promise;
the invariants are checked after it, whatever it was about.
"""
