"""Pods as machines: one for each copy of a workspace. The client library is loaded where one is needed, not before."""
