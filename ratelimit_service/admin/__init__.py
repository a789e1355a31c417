"""The HTTP ports: health, metrics, rules, and decisions in JSON."""

from ratelimit_service.admin.http import Admin
from ratelimit_service.admin.pages import Content, Pages, rules_page

__all__ = ["Admin", "Content", "Pages", "rules_page"]
