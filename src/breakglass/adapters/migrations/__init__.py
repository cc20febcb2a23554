"""Numbered SQL, forward only. A file that was ever released is never edited: its SHA-256 is in every database it made."""
