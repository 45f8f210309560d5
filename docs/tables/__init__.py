"""The tables and sentences that documents quote from the committed records, a module a subject."""
