"""Pages of the hub's own beside the model admin: the overview, one operation, a connection's
buttons.
"""
