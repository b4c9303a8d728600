"""What our methods make of the parameters `p` and the inputs `i` of a reference vector, for `test_golden.py`."""

import json

import torch
from conftest import ROOT
from toy_rollouts import toy_rollouts

from leash_trl.length_control.a_dlp import ADLP
from leash_trl.length_control.advantages import AdvantageRule, standardised
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.dler import DLER
from leash_trl.length_control.dual import projected_ascent, violation
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gfpo import GFPO
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import centred_weights
from leash_trl.length_control.grpo_lead import GRPOLead
from leash_trl.length_control.hapo import HAPO
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.laser import DIFFICULTIES, Laser, right_answers, smallest_target
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.prime_rl import PrimeRL
from leash_trl.length_control.thinkprune import ThinkPrune


VECTORS = json.loads((ROOT / "tests" / "references" / "golden.json").read_text(encoding="utf-8"))


def shaped(method, rewards, lengths, **kwargs):
    return method.shape(toy_rollouts(rewards, lengths, **kwargs)).tolist()


def scored(method, rewards, lengths, epsilon=1e-8, **kwargs):
    return method.score(toy_rollouts(rewards, lengths, **kwargs), AdvantageRule("group", epsilon))


def stepped(method, rewards, lengths, **kwargs):
    method.observe(toy_rollouts(rewards, lengths, **kwargs))
    method.step()
    return method


def mean_steps(make, target, lams, means):
    """lambda after one dual step from each lambda, on completions whose mean length is given."""
    return [
        stepped(make(lam), [0, 1], [mean - 10, mean + 10], target=float(target)).lam
        for lam, mean in zip(lams, means, strict=True)
    ]


def leash_steps(p, i):
    lams = i["lam"] if isinstance(i["lam"], list) else [i["lam"]]
    bounds = (p["lambda_lr"], p["lambda_min"], p["lambda_max"])
    ones = [1.0] * len(i["lengths"])
    after = [stepped(Leash(lam, *bounds), ones, i["lengths"], target=4096.0).lam for lam in lams]
    return after if isinstance(i["lam"], list) else after[0]


def leash_trajectory(p, i):
    lam, seen = p["lambda_init"], []
    for mean in i["batch_mean_length"]:
        overshoot = violation([mean], [p["target_length"]])
        lam = projected_ascent(lam, overshoot, p["lambda_lr"], p["lambda_min"], p["lambda_max"])
        seen.append(lam)
    return seen


def leash_full_step(p, i):
    method = Leash(i["lam"], p["lambda_lr"])
    batch = (i["correctness_reward"], i["length"])
    score = scored(method, *batch, p["adv_eps"], target=4096.0)
    lam = stepped(method, *batch, target=4096.0).lam
    return {"shaped": score.shaped.tolist(), "lam_next": lam, "advantages": score.advantages.tolist()}


def leash_cancels(p, i):
    return [
        scored(Leash(lam), i["correctness_reward"], i["length"], p["adv_eps"], target=4096.0).advantages.tolist()
        for lam in i["lam"]
    ]


def leash_c(p, i):
    method = LeashC(p["lam"])
    before = shaped(method, i["correctness_reward"], i["length"], target=4096.0)
    return {"shaped": before, "lam_next": stepped(method, [1, 1], i["lengths_for_dual"], target=4096.0).lam}


def l1(make):
    def compute(p, i):
        targets = [float(n) for n in i["target"]]
        return shaped(make(p.get("alpha", p.get("effective_alpha"))), i["correct"], i["length"], target=targets)

    return compute


def thinkprune(p, i):
    method = ThinkPrune(stages={0: p["limit"]})
    cap = method.generation_cap(None)
    # the grader sees the text up to the cut
    seen = [
        float(right and end is not None and end <= cap)
        for end, right in zip(i["boxed_answer_end"], i["answer_correct"], strict=True)
    ]
    return shaped(method, seen, [min(length, cap) for length in i["untruncated_length"]], limit=cap)


def thinkprune_stages(p, i):
    method, seen = ThinkPrune(stages=dict(enumerate(p["limits"]))), []
    for _ in p["limits"]:
        cap = method.generation_cap(None)
        graded = [float(length <= cap) * right for length, right in zip(i["length"], i["correct"], strict=True)]
        seen.append(shaped(method, graded, i["length"]))
        method.step()
    return seen


def laser(p, i, method=None):
    # a wrong answer that was truncated stands for a badly formatted one
    truncated = [score == -1 for score in i["score"]]
    rewards = [1.0 if score == 1 else -1.0 for score in i["score"]]
    method = method or Laser(alpha=p["alpha"])
    return shaped(method, rewards, i["length"], target=float(p.get("target", 2048)), truncated=truncated)


def laser_d(make):
    def compute(p, i):
        method = make(alpha=p["alpha"])
        method.targets = [p["targets"][name] for name in DIFFICULTIES]
        return laser(p, i, method)

    return compute


def laser_targets(rounding):
    def compute(p, i):
        num_right = dict(zip(DIFFICULTIES, right_answers(p["K"], rounding), strict=True))
        assert num_right == p["n_eff"]
        found = {}
        for level, coverage in i["coverage"].items():
            # 100 responses, of which `share` are up to `limit`, the others longer than any candidate
            lengths = [20000] * 100
            for limit, share in sorted(coverage.items(), key=lambda item: -int(item[0])):
                lengths[: round(100 * share)] = [int(limit)] * round(100 * share)
            target = smallest_target(lengths, map(int, coverage), num_right[level], p["expected_n_correct"])
            found[level] = i["max_len_in_train_batch"] if target is None else target
        return found

    return compute


def kimi(p, i):
    return (-Kimi(1.0).penalty(toy_rollouts(i["correct"], i["length"]))).tolist()


def kimi_of_laser(p, i):
    # its last answer is badly formatted, which lengths do not show
    penalties = Kimi(p["coef"]).penalty(toy_rollouts(i["score"][:-1], i["length"][:-1]))
    return [*(torch.tensor(i["score"][:-1]) - penalties).tolist(), -1.0]


def punishments(longest, cache):
    def compute(p, i):
        method = DapoOverlong(cache_length=p[cache], max_length=p[longest])
        return [1.0 + each for each in shaped(method, [-1.0] * len(i["length"]), i["length"])]

    return compute


def efficient(p, i):
    truncated = [not ended for ended in i.get("has_eos", [True] * len(i["length"]))]
    return shaped(Efficient(alpha=p["alpha"]), i["correct"], i["length"], truncated=truncated)


def with_accuracy(method, accuracy):
    right = round(accuracy * 100)
    return stepped(method, [1.0] * right + [-1.0] * (100 - right), [10] * 100).lam


def a_dlp_trajectory(p, i):
    method = ADLP()
    return [with_accuracy(method, accuracy) for accuracy in i["batch_accuracy"]]


def alp(p, i):
    batch = toy_rollouts(i["correct"], i["length"])
    prices = ALP(p["beta"]).score(batch, AdvantageRule()).penalty
    # the price itself: 1e-7 per token drowns in a tolerance relative to a reward near 1
    expected = next(v["expected"] for v in VECTORS if v["inputs"] == i and v["id"] in ALPS)
    torch.testing.assert_close(
        prices, batch.correctness - torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-15
    )
    return (batch.correctness - prices).tolist()


ALPS = ("alp_half", "alp_all_solved", "alp_none_solved")


def gfpo(**kwargs):
    def compute(p, i):
        method = GFPO(num_kept=p["k"], **kwargs)
        score = scored(method, i["reward"], i["length"], p.get("eps", 1e-8))
        kept = method.kept(toy_rollouts(i["reward"], i["length"]))
        found = {"kept": kept.nonzero().flatten().tolist()}
        if method.drop_unkept:
            assert torch.equal(score.keep, kept)
            return {**found, "advantages_of_kept": score.advantages[kept].tolist()}
        return {**found, "advantages": score.advantages.tolist()}

    return compute


def dler_batch(variant, epsilon):
    def compute(p, i):
        lengths = i.get("length", [1] * len(i["reward"]))
        batch = {"target": 5000.0, "num_generations": i["group"].count(0)}
        score = scored(DLER(variant=variant), i["reward"], lengths, epsilon, **batch)
        return (score.advantages - (0.1 * score.shaped if variant == "release" else 0)).tolist()

    return compute


def dler_boost(p, i):
    # the third is right and has no end
    lengths, truncated = [10, 20, 30], [False, False, True]
    score = scored(DLER(variant="release"), [1, 0, 1], lengths, target=100.0, truncated=truncated)
    assert score.shaped.tolist() == i["score"]
    plain = standardised(score.shaped - score.shaped.mean(), torch.tensor(lengths), 1, 1e-8)
    return (torch.tensor(i["advantage"]) + score.advantages - plain).tolist()


def dler_limits(p, i):
    correct = [n < 16 * rate for rate in i["group_accuracy"] for n in range(16)]
    batch = toy_rollouts(correct, [1] * len(correct), target=float(p["hard_limit"]), num_generations=16)
    return DLER(easy_limit=p["easy_limit"], easy_threshold=p["threshold"]).limits(batch)[::16].tolist()


def cosine(limit="max_len", **kwargs):
    def compute(p, i):
        return shaped(Cosine(**kwargs), i["correct"], i["length"], limit=p[limit])

    return compute


def grpo_lead_weights(p, i):
    method = GRPOLead(0.05, None, p["A"], p["B"], p["x0"], p["k"])
    assert method == GRPOLead()
    return method.weights(torch.tensor(i["rho"], dtype=torch.float64)).tolist()


def prime_june(p, i):
    method = PrimeRL("june", p["coef"], p["gate_by_correctness"], p["length_weighted_baseline"])
    return scored(method, i["reward"], i["length"], limit=p["max_seq_len"]).advantages.tolist()


class Graded(GR3):
    def base_rewards(self, rollouts):
        return rollouts.task_rewards


def weights(lengths):
    return centred_weights(torch.tensor([lengths], dtype=torch.float64)).flatten()


def grlc_reward(p, i):
    rewards = torch.tensor(i["base_reward"], dtype=torch.float64)
    rewards += p["lambda_think"] * weights(i["think_length"]) + p["lambda_answer"] * weights(i["answer_length"])
    return rewards.tolist()


def hapo(p, i):
    method = HAPO(p["w"], p["clip"])
    if p["h"] is not None:
        method.observe(toy_rollouts([1], [p["h"]]))
    assert HAPO() == method
    return shaped(method, i["correct"], i["length"])


def hapo_history(p, i):
    seen = []
    for h, lengths in zip(i["h"], i["correct_lengths_this_step"], strict=True):
        method = HAPO()
        method.shortest = {} if h is None else {"0": h}
        method.observe(toy_rollouts([1] * len(lengths) + [0, float("nan")], [*lengths, 5, 6]))
        seen.append(method.shortest["0"])
    return seen


def laconic_and_leash(p, i):
    batch = {"rewards": [-1], "lengths": [i["length"]], "target": float(p["target"])}
    return {
        "laconic_0_1": shaped(Laconic(p["lam"], lambda_max=1.0), **batch)[0],
        "leash_pm1": shaped(Leash(p["lam"]), **batch)[0],
    }


def leash_rewards(p, i):
    return shaped(Leash(p["lam"]), i["correctness_reward"], i["length"], target=4096.0)
