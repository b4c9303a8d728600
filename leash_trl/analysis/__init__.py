"""Reads the folders of finished runs and builds the report: curves, behaviour, tables, figures."""
