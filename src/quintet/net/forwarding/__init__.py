"""Forwards connections and datagrams of a node that does not lead to the same door of the leader."""
