"""What users read: check, evaluate, report, explain."""
