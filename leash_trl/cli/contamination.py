"""`leash contamination`: finds training problems that are also in a benchmark, and writes the data without them."""

import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import user_errors


REFERENCE = "a named source, NAME=PATH, a file, a folder or a Hub id"
NUM_EXAMPLES = 5
EXAMPLE_WIDTH = 110


@dataclass
class ContaminationArguments:
    """Options of `leash contamination`."""

    dataset_name: str = field(metadata={"help": f"training problems: {REFERENCE}"})
    benchmarks: list[str] = field(metadata={"help": f"benchmarks, each {REFERENCE}"})
    dataset_split: str | None = field(
        default=None, metadata={"help": "split of the training problems (default: the source's own)"}
    )
    ngram: int = field(default=10, metadata={"help": "words and operators in a run that is compared"})
    threshold: float = field(
        default=0.6,
        metadata={"help": "share of a benchmark problem's runs above which a training problem overlaps with it"},
    )
    output: str | None = field(
        default=None, metadata={"help": "write the training problems without overlap to this .jsonl file"}
    )


def main(argv: list[str]) -> None:
    """Runs `leash contamination`."""
    description = "Report training problems that benchmarks hold too, and drop them."
    arguments = parse(ContaminationArguments, argv, prog="leash contamination", description=description)

    from leash_trl.data.contamination import count_overlaps, find_overlaps, without_overlaps
    from leash_trl.data.problems import load_problems
    from leash_trl.data.sources import parse_reference
    from leash_trl.files import write_whole

    with user_errors():
        if arguments.output is not None:
            _check_output(arguments.output, [arguments.dataset_name, *arguments.benchmarks])
        training = load_problems(arguments.dataset_name, split=arguments.dataset_split)
        names = [parse_reference(text).name for text in arguments.benchmarks]
        if len(set(names)) < len(names):
            raise ValueError(f"two benchmarks have the same name among {', '.join(names)}; rename a file")
        benchmarks = {name: load_problems(text) for name, text in zip(names, arguments.benchmarks, strict=True)}
        overlaps = find_overlaps(training, benchmarks, ngram=arguments.ngram, threshold=arguments.threshold)
    print(f"{arguments.dataset_name}: {len(training):,} problems")
    print(_table(count_overlaps(overlaps, benchmarks), arguments.threshold))
    print(_examples(overlaps, training, benchmarks))
    if arguments.output:
        clean = without_overlaps(training, overlaps)
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
        if place != path and place.is_file():
            raise ValueError(f"output is {output!r}, in {place}, which is no folder; name another file")


def _table(counts, threshold: float) -> str:
    near = f"over {threshold:.0%}"
    lines = [f"{'benchmark':<16} {'problems':>8} {'verbatim':>8} {near:>9}"]
    lines += [f"{name:<16} {c.num_problems:>8} {c.num_exact:>8} {c.num_near:>9}" for name, c in counts.items()]
    return "\n".join(lines)


def _examples(overlaps, training, benchmarks) -> str:
    """The largest overlaps that are not verbatim; verbatim ones need no reading."""
    from leash_trl.data.prompts import bare_question

    worst = sorted((o for o in overlaps if not o.is_exact), key=lambda o: -o.share)[:NUM_EXAMPLES]
    lines = []
    for overlap in worst:
        benchmark = benchmarks[overlap.benchmark]
        theirs = benchmark[benchmark["id"].index(overlap.benchmark_id)]["prompt"][-1]["content"]
        ours = training[overlap.train_index]["prompt"][-1]["content"]
        lines.append(f"\n{overlap.benchmark} {overlap.benchmark_id} and {overlap.train_id}: {overlap.share:.0%}")
        lines += ["  " + " ".join(bare_question(text).split())[:EXAMPLE_WIDTH] for text in (theirs, ours)]
    return "\n".join(lines)
