"""What several tests share: simulated devices, records, kernels that must be rejected."""
