"""The allocation's problem and answer as records, and what they are made from."""
