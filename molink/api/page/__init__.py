"""The web page at `/`: a chat in the browser, and beside it the ring that answers.

The page is files as they are (HTML, CSS, ES modules): nothing builds them and they load nothing
from elsewhere. It asks the same endpoints as every other client, so it opens without a key and
asks its reader for one when the API does. `routes` serves the files, and as
`GET /ring` the cluster, reduced to what a user may see.

In the browser `main.js` is the page, `chat.js` the conversation in it, `api.js` speaks HTTP,
`answering.js` follows an answer over as many connections as it takes, `answer.js` shows it and who
served it, `markdown.js` and `math.js` turn its text into DOM nodes, `ring.js` draws the ring,
`attach.js` takes text files, `settings.js`, `addresses.js` and `history.js` keep what the reader
wants kept, `links.js` takes a key from a link, `announcer.js` tells a screen reader what has been
written. What there is once on a page, such as the conversation, is a module, not a class.
"""
