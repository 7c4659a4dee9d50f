"""What goes over the wire: driver, retries, bounds, and a server's shared state."""
