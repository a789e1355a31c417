"""The HTTP ports: health, metrics, rules, decisions in JSON, and the admin listener."""

from ratelimit_service.admin.http import HttpPort
from ratelimit_service.admin.listener import AdminListener
from ratelimit_service.admin.pages import Content, Pages, rules_page
from ratelimit_service.admin.route import Deciders, Here, Operating

__all__ = [
    "AdminListener",
    "Content",
    "Deciders",
    "Here",
    "HttpPort",
    "Operating",
    "Pages",
    "rules_page",
]
