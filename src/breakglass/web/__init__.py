"""Layer 1 over HTTP: JSON in, JSON out, one error shape, one route table. Decides nothing: every route asks `service.py`."""
