"""Hypothesis strategies for what servers and callers may give."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

vschars = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=60
)
"""Tokens as RFC 6749 Appendix A has them."""

secrets = st.text(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~+/=",
    min_size=12,
    max_size=80,
).filter(lambda text: any(char.isdigit() for char in text))
"""Tokens that occur neither in prose nor among error codes."""

identifiers = st.text(
    st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40
)
"""Client identifiers and secrets: anything that can be sent."""

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(codec="utf-8"), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=10), inner, max_size=4)
    ),
    max_leaves=12,
)
"""Whatever JSON can say, and Python's writer says beyond it (``NaN``)."""

_names = st.sampled_from(
    [
        "access_token",
        "refresh_token",
        "token_type",
        "expires_in",
        "expires_at",
        "refresh_expires_in",
        "scope",
        "id_token",
        "error",
        "error_description",
        "error_uri",
        "errors",
        "error_codes",
        "claims",
        "correlation_id",
        "issuer",
        "token_endpoint",
    ]
)

json_bodies = st.dictionaries(
    _names | st.text(max_size=8), json_values, max_size=6
).map(lambda members: json.dumps(members).encode())
"""JSON objects whose members have the right names and any type."""

garbled = st.builds(
    lambda body, cut, noise: body[:cut] + noise,
    json_bodies,
    st.integers(min_value=0, max_value=80),
    st.binary(max_size=8),
)
"""JSON objects that were cut or overwritten on the way."""

bodies = st.binary(max_size=200) | json_bodies | garbled
"""Bodies of any kind."""

statuses = st.integers(min_value=100, max_value=999)

header_texts = st.text(
    st.sampled_from(list('Bbearer DPoP,="\\\t;/:abcdefghij')), max_size=80
) | st.text(max_size=40)
"""Field values, most of them made of what challenges are made of."""

headers = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "Content-Type",
                "Retry-After",
                "Date",
                "Location",
                "X-Request-ID",
                "WWW-Authenticate",
            ]
        ),
        header_texts | st.sampled_from(["7", "-1", "Fri, 15 Jan 2027 08:00:00 GMT"]),
    ),
    max_size=4,
).map(tuple)
