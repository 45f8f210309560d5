"""Records of evidence as plain data: of benchmarks, explanations, timelines and others."""
