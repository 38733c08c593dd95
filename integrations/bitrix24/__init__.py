"""Bitrix24: contacts through the classic REST, by incoming webhook."""
