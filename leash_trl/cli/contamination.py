"""`leash contamination`: finds training problems that are also in a benchmark, and writes the data without them."""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import user_errors


if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame


REFERENCE = "a named source, NAME=PATH, a file, a folder or a Hub id"
NUM_EXAMPLES = 5
EXAMPLE_WIDTH = 110


@dataclass
class ContaminationArguments:
    """Options of `leash contamination`."""

    dataset_name: str = field(metadata={"help": f"training problems: {REFERENCE}"})
    benchmarks: list[str] = field(metadata={"help": f"benchmarks, each {REFERENCE}"})
    dataset_split: str | None = option("split of the training problems")
    ngram: int = option("words and operators in a run that is compared", 10)
    threshold: float = option("share of a benchmark problem's runs above which a training problem is near it", 0.6)
    output: str | None = option(".jsonl file for training problems without overlap")


def main(argv: list[str]) -> None:
    """Runs `leash contamination`."""
    description = "Report training problems that benchmarks hold too, and drop them."
    arguments = parse(ContaminationArguments, argv, prog="leash contamination", description=description)

    from leash_trl.data.contamination import count_overlaps, find_overlaps
    from leash_trl.data.problems import load_problems
    from leash_trl.data.sources import parse_reference
    from leash_trl.files import write_whole

    with user_errors():
        if arguments.output is not None:
            _check_output(arguments.output, [arguments.dataset_name, *arguments.benchmarks])
        training = load_problems(arguments.dataset_name, split=arguments.dataset_split)
        benchmarks = {parse_reference(text).name: load_problems(text) for text in arguments.benchmarks}
        if len(benchmarks) < len(arguments.benchmarks):
            raise ValueError(f"benchmarks is {', '.join(arguments.benchmarks)}: two have the same name; rename a file")
        overlaps = find_overlaps(training, benchmarks, ngram=arguments.ngram, threshold=arguments.threshold)
    print(f"{arguments.dataset_name}: {len(training):,} problems; near: more than {arguments.threshold:.0%} shared")
    print(count_overlaps(overlaps, benchmarks).to_string(index_names=False))
    print(_examples(overlaps, training, benchmarks))
    if arguments.output:
        clean = training.select(sorted({*range(len(training))} - {*overlaps["train_index"]}))
        content = io.BytesIO()
        clean.to_json(content, force_ascii=False)
        write_whole(arguments.output, content.getvalue())
        print(f"wrote {arguments.output}: {len(clean)} of {len(training)} problems")


def _check_output(output: str, references: Iterable[str]) -> None:
    """Checks, before the work, that the output can be written and is none of the input files."""
    from leash_trl.data.sources import parse_reference

    path = Path(output).resolve()
    if path.suffix != ".jsonl" or path.is_dir():
        raise ValueError(f"output is {output!r}, but must be a file that ends in .jsonl")
    read = [place.resolve() for text in references if (place := parse_reference(text).path) is not None]
    for place in (path, *path.parents):
        if place in read:
            raise ValueError(f"output is {output!r}, which would overwrite or join {place}; name another file")


def _examples(overlaps: "DataFrame", training: "Dataset", benchmarks: Mapping[str, "Dataset"]) -> str:
    """The largest overlaps that are not verbatim; verbatim ones need no reading."""
    from leash_trl.data.prompts import bare_question

    lines = []
    worst = overlaps[~overlaps["is_exact"]].sort_values("share", ascending=False, kind="stable")[:NUM_EXAMPLES]
    for overlap in worst.itertuples():
        place = benchmarks[overlap.benchmark]["id"][:].index(overlap.benchmark_id)
        pair = benchmarks[overlap.benchmark][place], training[overlap.train_index]
        lines.append(f"\n{overlap.benchmark} {overlap.benchmark_id} and {overlap.train_id}: {overlap.share:.0%}")
        lines += ["  " + " ".join(bare_question(row["prompt"][-1]["content"]).split())[:EXAMPLE_WIDTH] for row in pair]
    return "\n".join(lines)
