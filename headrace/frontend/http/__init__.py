"""The HTTP face: routes, bodies, errors and server-sent events over one `AsyncLLM`."""
