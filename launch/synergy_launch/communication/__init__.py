"""What data-parallel replicas exchange, where the user allows less than every gradient in every step."""
