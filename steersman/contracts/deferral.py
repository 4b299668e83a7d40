"""When this process builds the models of the wire. Models must not live here: this is imported before them.

As they are defined, unless a program says otherwise before it imports any: then each at its first use. That halves the
time to load them, for a program that needs few. Several threads must not use such models: pydantic before 2.14 builds
a model twice then, and the second thread reads with half of one.
"""

models_are_deferred = False
