"""The BibTeX entries of what a run used: its method, DAPO, GDPO, TRL and this package, as its recipe says."""

from collections.abc import Mapping
from typing import Any

from leash_trl import __version__
from leash_trl.length_control.method import LengthControl, Paper
from leash_trl.length_control.methods import METHODS


DAPO_PAPER = METHODS["dapo_overlong"].paper
GDPO_PAPER = Paper(
    "GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization", "2601.05242"
)
TRL_BIBTEX = """\
@software{vonwerra2020trl,
  title = {{TRL: Transformers Reinforcement Learning}},
  author = {von Werra, Leandro and Belkada, Younes and Tunstall, Lewis and Beeching, Edward and Thrush, Tristan and \
Lambert, Nathan and Huang, Shengyi and Rasul, Kashif and Gallouédec, Quentin},
  license = {Apache-2.0},
  url = {https://github.com/huggingface/trl},
  year = {2020},
}"""
# as in CITATION.cff, which an installed package does not have
LEASH_TRL_BIBTEX = f"""\
@software{{leash_trl,
  title = {{{{leash_trl: LEASH for TRL}}}},
  author = {{{{The leash_trl authors}}}},
  license = {{Apache-2.0}},
  version = {{{__version__}}},
}}"""


def bibtex(paper: Paper) -> str:
    """Returns the BibTeX entry of a paper: of its publication, or of its arXiv preprint if it was not published."""
    # The values of the BibTeX fields by name. A second pair of braces around the title keeps its capital letters.
    fields = {"title": f"{{{paper.title}}}"}
    if paper.authors:
        fields["author"] = paper.authors
    # An id of arXiv, such as "2512.21540", begins with the year of the preprint.
    fields |= paper.published or {"year": f"20{paper.id[:2]}"}
    fields["eprint"] = paper.id
    fields["archivePrefix"] = "arXiv"
    entry_type = "inproceedings" if paper.published else "misc"
    lines = [f"@{entry_type}{{arxiv{paper.id},"]
    for name, value in fields.items():
        lines.append(f"  {name} = {{{value}}},")
    return "\n".join([*lines, "}"])


def citations(method: type[LengthControl], recipe: Mapping[str, Any]) -> list[str]:
    """Returns the BibTeX entries of what a run used, each once: the paper of its method, DAPO, GDPO, TRL, and this
    package.

    Args:
        method (`type[LengthControl]`): The method of the run.
        recipe (`Mapping[str, Any]`): Fields of [`LeashGRPOConfig`] by name; those left out have their defaults.
    """
    used = []
    # For a method without a paper, such as a class of the user, the nearest base class with a paper is cited.
    for base in method.__mro__:
        paper = getattr(base, "paper", None)
        if paper is not None:
            used.append(paper)
            break
    if uses_dapo(recipe):
        used.append(DAPO_PAPER)
    # With this value of its field, TRL computes advantages as GDPO does.
    if recipe.get("multi_objective_aggregation") == "normalize_then_sum":
        used.append(GDPO_PAPER)
    entries = [bibtex(paper) for paper in used]
    # The paper of the method may itself be that of DAPO. `dict.fromkeys` then keeps one of the two equal entries.
    return [*dict.fromkeys(entries), TRL_BIBTEX, LEASH_TRL_BIBTEX]


def uses_dapo(recipe: Mapping[str, Any]) -> bool:
    """Returns whether a run uses a part of DAPO: its loss, its clipping range or its filter of truncated completions,
    or dynamic sampling. By default, it uses the first two."""
    # The defaults are those of `LeashGRPOConfig`, which a recipe does not repeat.
    has_loss = recipe.get("loss_type", "dapo") == "dapo"
    clips_higher = "epsilon_high" not in recipe or recipe["epsilon_high"] is not None
    filters = bool(recipe.get("mask_truncated_completions"))
    resamples = recipe.get("dynamic_sampling_rounds", 0) > 0
    return has_loss or clips_higher or filters or resamples
