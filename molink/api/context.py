"""What every handler finds in the application: the service, and the texts of its tokens."""

from aiohttp import web

from molink.api.token_texts import TokenTexts
from molink.serving.service import GenerationService

__all__ = ["SERVICE", "TOKEN_TEXTS"]

SERVICE: web.AppKey[GenerationService] = web.AppKey("service")
TOKEN_TEXTS: web.AppKey[TokenTexts] = web.AppKey("token_texts")
