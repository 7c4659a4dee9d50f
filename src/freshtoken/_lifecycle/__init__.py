"""The life of a token: when to renew, who renews, and what is done about failures."""
