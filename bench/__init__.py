"""What a person runs to see and to measure: the demo, the benchmarks, the pictures. Nothing imports it."""
