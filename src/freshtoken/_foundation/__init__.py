"""Clock, secrets and records: what every other layer may lean on."""
