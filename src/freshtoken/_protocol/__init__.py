"""Pure: requests built, responses read, failures classified. No I/O, no clock."""
