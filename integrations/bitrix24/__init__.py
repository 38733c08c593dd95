"""Bitrix24: the connector, and the stand-in it is tested against."""
