"""synergyd's loop and its surroundings: clock, heartbeat, reports, leadership."""
