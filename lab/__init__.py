"""A real one-node cluster for tests, benches and the demo; product code never imports it."""
