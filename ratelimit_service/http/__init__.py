"""The HTTP ports: health, metrics, rules, decisions in JSON, and the admin listener."""

from ratelimit_service.http.http_port import HttpPort, Shown
from ratelimit_service.http.listener import AdminListener
from ratelimit_service.http.pages import Content, Pages, rules_page
from ratelimit_service.http.route import Operating

__all__ = [
    "AdminListener",
    "Content",
    "HttpPort",
    "Operating",
    "Pages",
    "Shown",
    "rules_page",
]
