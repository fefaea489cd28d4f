"""What runs inside a job: launcher, agent, training adapters. Imports no server part of synergyd."""
