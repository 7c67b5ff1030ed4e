"""What is decided before start. Everything here is frozen; what is found out at run time is a message."""
