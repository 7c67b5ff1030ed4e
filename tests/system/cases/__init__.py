"""Inputs that broke other engines, as requests to a real server of the tiny model, each under the id of its case.

Every case runs alone and beside eight healthy streams, on a plain server and on one under PYTHONOPTIMIZE=1; afterwards
the server must answer as before, with nothing left over and nobody else disturbed (`conftest.surroundings`).
"""
