"""The chapters: a lesson, a lab, a ladder of steps, tests and a benchmark each."""
