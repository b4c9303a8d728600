"""An engine that says what a test tells it to, and remembers what it was asked."""

import itertools

from leash_trl.engines.engine import Generation


class ScriptedEngine:
    """Rows are told apart by the first token of their prompts; each call of a row takes its next text.

    A text is token ids, said until an end or stop token, or the limit.
    """

    max_length = None

    def __init__(self, tokenizer, texts):
        self.tokenizer = tokenizer
        self.eos_token_ids = [tokenizer.eos_token_id]
        self._texts = {row: iter(texts_of_row) for row, texts_of_row in texts.items()}
        self.calls = []

    def generate(self, requests, settings):
        self.calls.append(list(requests))
        return [self._generation(request) for request in requests]

    def _generation(self, request):
        row = request.prompt_ids[0]
        token_ids = []
        for token_id in next(self._texts[row]):
            token_ids.append(token_id)
            is_end = token_id in {*self.eos_token_ids, *request.stop_token_ids}
            if is_end or len(token_ids) == request.max_new_tokens:
                break
        else:
            raise AssertionError(f"the text of row {row} neither ends nor reaches its limit")
        return Generation(token_ids, is_truncated=not is_end)

    def asked(self, row):
        """The requests of one row, in order."""
        requests = itertools.chain.from_iterable(self.calls)
        return [request for request in requests if request.prompt_ids[0] == row]
