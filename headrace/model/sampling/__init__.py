"""What of sampling does not depend on the backend."""
