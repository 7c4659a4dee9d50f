"""Real servers for the tests of this folder."""

from tests.servers.fixtures import oidc_provider, oidc_provider_process

__all__ = ["oidc_provider", "oidc_provider_process"]
