"""The web page at `/`: a chat in the browser, and beside it the ring that answers.

The page is files as they are (HTML, CSS, ES modules): nothing builds them and they load nothing
from elsewhere. It asks the same endpoints as every other client, so it opens without a key and
asks its reader for one when the API does. `routes` serves the files, and as
`GET /ring` the cluster, reduced to what a user may see.

In the browser `main.js` is the chat, `api.js` speaks HTTP, `answer.js` shows one answer and who
served it, `markdown.js` turns its text into DOM nodes, `ring.js` draws the ring, `settings.js`
keeps what the reader has set, `announcer.js` tells a screen reader what has been written.
"""
