"""What a page shows of any program's reports."""
