"""What tests of all layers share. Importable as ``support`` (pytest's ``pythonpath`` setting)."""
