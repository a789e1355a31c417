"""The rule files: read, checked, merged and matched. The only package that knows YAML."""
