"""Generates load and reports on it: the library behind `quintet bench` and the side-by-side harness in `bench/`.

Generators talk raw sockets with buffers encoded beforehand, so that the server under test is what is measured and
every server meets the same shape of load. The broker must not import this, and nothing here uses the client library.
"""
