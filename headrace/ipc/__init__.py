"""Between processes: control channels of children, sockets of messages, and the folder of a run."""
