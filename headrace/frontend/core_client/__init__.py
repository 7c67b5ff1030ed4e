"""How a front end reaches an engine core: in its own process, or over sockets."""
