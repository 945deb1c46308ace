"""What people look at: explanations, drawings, progress and the journal in words; functions of plans and records."""
