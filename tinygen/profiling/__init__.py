"""What a run costs: memory per device, operations and communication."""
