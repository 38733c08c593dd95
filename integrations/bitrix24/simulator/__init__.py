"""A stand-in for Bitrix24: its own process, real HTTP, an effect ledger and faults to order.

It imports nothing of the hub and nothing of the connector, and neither imports it; tests talk to
it through :mod:`.client`. Start it with ``python -m integrations.bitrix24.simulator --port 8001``.
"""
