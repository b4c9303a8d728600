"""`leash contamination`: finds training problems that are also in a benchmark, and writes the data without them."""

import io
from dataclasses import dataclass
from pathlib import Path

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


NUM_EXAMPLES = 5


@dataclass
class ContaminationArguments:
    """Report training problems that benchmarks hold too, and drop them.

    Args:
        dataset_name (`str`): Training problems: a named source, NAME=PATH with a local copy of one, a file, a folder
            or a Hub id.
        benchmarks (`list[str]`): Benchmarks, of the same kinds.
        dataset_split (`str`): Split of the training problems.
        ngram (`int`): Words and operators in a run that is compared.
        threshold (`float`): Share of a benchmark problem's runs; a training problem is near with more of them.
        output (`str`): New .jsonl file for training problems without overlap.
    """

    dataset_name: str
    benchmarks: list[str]
    dataset_split: str | None = None
    ngram: int = 10
    threshold: float = 0.6
    output: str | None = None


def main(argv: list[str]) -> None:
    """Runs `leash contamination`."""
    arguments = parse(ContaminationArguments, argv, "leash contamination")

    from leash_trl.data.contamination import count_overlaps, find_overlaps
    from leash_trl.data.problems import load_problems
    from leash_trl.data.sources import parse_reference
    from leash_trl.files import write_whole

    output = arguments.output
    with user_errors():
        if output and (not output.endswith(".jsonl") or Path(output).exists()):  # it may be one of those that are read
            raise ValueError(f"output is {output!r}, but must be a new file that ends in .jsonl")
        training = load_problems(arguments.dataset_name, split=arguments.dataset_split)
        benchmarks = {parse_reference(text).name: load_problems(text) for text in arguments.benchmarks}
        if len(benchmarks) < len(arguments.benchmarks):
            raise ValueError(f"benchmarks is {', '.join(arguments.benchmarks)}: two have the same name; rename a file")
        overlaps = find_overlaps(training, benchmarks, ngram=arguments.ngram, threshold=arguments.threshold)
    print(f"{arguments.dataset_name}: {len(training):,} problems; near: more than {arguments.threshold:.0%} shared")
    print(count_overlaps(overlaps, benchmarks).to_string(index_names=False))
    near = overlaps[~overlaps["is_exact"]].nlargest(NUM_EXAMPLES, "share")  # verbatim ones need no reading
    print(near[["benchmark", "benchmark_id", "train_id", "share"]].to_string(index=False) if len(near) else "")
    if output:
        content = io.BytesIO()
        clean = training.select(sorted({*range(len(training))} - {*overlaps["train_index"]}))
        clean.to_json(content, force_ascii=False)
        write_whole(output, content.getvalue())
        print(f"wrote {output}: {len(clean)} of {len(training)} problems")
