"""The page /docs: Swagger UI with its scripts beside it, under headers that let it load and send nothing else."""

import base64
import hashlib
import re

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html

FILES = "/static-offline-docs"  # where fastapi-offline puts them


def add_docs(app: FastAPI) -> None:
    """Register the page."""
    body = get_swagger_ui_html(
        openapi_url=str(app.openapi_url),
        title=f"{app.title} - Swagger UI",
        swagger_js_url=f"{FILES}/swagger-ui-bundle.js",
        swagger_css_url=f"{FILES}/swagger-ui.css",
        swagger_favicon_url=f"{FILES}/favicon.png",
    ).body
    headers = page_headers(bytes(body))

    async def docs() -> Response:
        return Response(body, headers=headers, media_type="text/html")

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)


def page_headers(body: bytes) -> dict[str, str]:
    """Headers for a page: its own inline scripts and this service's files run, and no other page may frame it."""
    inline = re.findall(rb"<script>(.*?)</script>", body, re.DOTALL)
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in inline]
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(["'self'", *hashes]),
        "style-src": "'self' 'unsafe-inline'",  # Swagger UI writes style attributes
        "img-src": "'self' data:",
        "connect-src": "'self'",
        **dict.fromkeys(("base-uri", "form-action", "frame-ancestors"), "'none'"),
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }
