"""Facts of prompts and completions that training, rewards, grading and evaluation share. It knows token ids, text
and messages.

    thinking.py   where the thinking of a completion begins and ends, in its text and in its tokens
    facts.py      how many tokens the model generated, how many of them are thinking, and whether it was truncated
    costs.py      which of these numbers a target limits
    checking.py   how many tokens follow the first right result
    prompts.py    appends text to a prompt
"""
