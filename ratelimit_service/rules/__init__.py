"""The rule files: read, checked, merged and matched. No other package knows their YAML."""
