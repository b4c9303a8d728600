"""Facts of prompts and completions that training, rewards, grading and evaluation share, from token ids, text and
messages.

    thinking.py   where the thinking of a completion begins and ends, in its text and in its tokens
    facts.py      how many tokens the model generated, how many of them are thinking, and whether it was truncated
    costs.py      which of these numbers a target limits
    checking.py   how many tokens follow the first correct result
    prompts.py    appends text to a prompt, and reads a row's arguments of the chat template
"""
