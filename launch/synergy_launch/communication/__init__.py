"""The exchange between data-parallel replicas where the user allows less than every gradient in every step."""
