"""The sending of notices: a webhook and mail, from a thread of their own."""
