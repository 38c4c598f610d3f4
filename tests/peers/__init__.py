"""Other servers' own tests, run against this one; nothing of them is kept here."""
